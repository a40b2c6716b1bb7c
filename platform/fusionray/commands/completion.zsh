# Offer what may follow the typed word among the words given, up to the next "." of a section or "=" of a key.
_fusionray_words() {
  local word rest
  local -aU found ended
  for word in "$@"; do
    [[ $word == "$PREFIX"* ]] || continue
    rest=${word#"$PREFIX"}
    if [[ $PREFIX != *=* && $rest == *[.=]* ]]; then
      found+=("$PREFIX${rest%%[.=]*}${${rest#"${rest%%[.=]*}"}[1]}")
    else
      ended+=("$word")
    fi
  done
  (( ${#found} )) && compadd -Q -S '' -a found
  (( ${#ended} )) && compadd -Q -a ended
  (( ${#found} + ${#ended} )) && return 0
  compset -P '*=' && _files
}
# shtab
