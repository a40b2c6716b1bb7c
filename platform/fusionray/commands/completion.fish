# Print what may follow the typed word among the words given, up to the next "." of a section or "=" of a key.
function _fusionray_words
    set -l typed (commandline -ct)
    set -l pattern '^('(string escape --style=regex -- $typed)'[^.=]*[.=]?).*$'
    string match -q '*=*' -- $typed
    and set pattern '^('(string escape --style=regex -- $typed)'.*)$'
    string replace -r -f $pattern '$1' -- $argv | sort -u
end
# shtab
