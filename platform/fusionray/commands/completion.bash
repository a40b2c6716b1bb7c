# Print what may follow the typed word $1 among the words behind it, up to the next "." of a section or "=" of a key.
_fusionray_words() {
  local typed=$1 word rest cut last=""
  shift
  for word in "$@"; do
    [[ $word == "$typed"* ]] || continue
    rest=${word#"$typed"}
    cut=$rest
    if [[ $typed != *=* ]]; then
      cut=${rest%%[.=]*}
      cut=${rest:0:${#cut}+1}
    fi
    [[ $typed$cut == "$last" ]] || echo "$typed$cut"
    last=$typed$cut
  done
}
# shtab
# Bash splits words at "=": put KEY=VALUE together before shtab's function looks at them, and apart again after it.
_fusionray() {
  local index word previous="" position=0
  local -a words=()
  for index in "${!COMP_WORDS[@]}"; do
    word=${COMP_WORDS[index]}
    if [[ $index -gt 0 && ( $word == "=" || $previous == "=" ) ]]; then
      words[${#words[@]}-1]+=$word
    else
      words+=("$word")
    fi
    [[ $index -eq $COMP_CWORD ]] && position=$((${#words[@]} - 1))
    previous=$word
  done
  local -a COMP_WORDS=("${words[@]}")
  local COMP_CWORD=$position typed=${words[position]}
  _shtab_fusionray
  if [[ $typed == *=* && $COMP_WORDBREAKS == *=* ]]; then
    COMPREPLY=("${COMPREPLY[@]#"${typed%%=*}="}")
  fi
  if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[.=] ]]; then
    compopt -o nospace 2>/dev/null
  fi
}
complete -o bashdefault -o default -F _fusionray fusionray
