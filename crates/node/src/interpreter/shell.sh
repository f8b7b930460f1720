# The driver of a bash context: see python.py for how it talks. A cell runs in this very shell, so that it can change it.
# What it says itself goes out whatever a cell does to this shell's own output.
exec {__bbx_lines}<&0 {__bbx_out}>&1 {__bbx_err}>&2 </dev/null
__bbx_count=0
trap ':' INT
while IFS=' ' read -r -u "$__bbx_lines" __bbx_verb __bbx_token __bbx_code; do
  [ "$__bbx_verb" = run ] || continue
  __bbx_count=$((__bbx_count + 1))
  eval "$(printf %s "$__bbx_code" | base64 -d)"
  __bbx_status=$?
  if [ "$__bbx_status" -eq 0 ]; then
    __bbx_word=ok
  elif [ "$__bbx_status" -eq 130 ]; then
    __bbx_word=interrupted
  else
    __bbx_word=error
    printf '\036%s{"k":"error","name":"ExitStatus","value":"%d","traceback":[]}\036' "$__bbx_token" "$__bbx_status" >&"$__bbx_out"
  fi
  printf '\036%s{"k":"done","status":"%s","count":%d}\036' "$__bbx_token" "$__bbx_word" "$__bbx_count" >&"$__bbx_out"
  printf '\036%s\036' "$__bbx_token" >&"$__bbx_err"
done
