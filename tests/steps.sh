# For tests/run.sh, to be sourced: runs steps one after another, each in a session of its own with a time limit, ends what a step leaves
# running, and sums up. Needs Linux's /proc and util-linux's setsid. `logs` is the folder that holds a file per step.

names=() results=() failed=() left_out=()
running=

# members SESSION: the processes of a session that have not ended.
members() {
  local file stat fields
  for file in /proc/[0-9]*/stat; do
    { stat=$(<"$file"); } 2>/dev/null || continue
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[3]:-} == "$1" && ${fields[0]} != [ZX] ]] && echo "${stat%% *}"
  done
}

# has_ended SESSION SECONDS: whether all its processes have ended within that time.
has_ended() {
  local end=$((SECONDS + $2))
  while [[ $(members "$1") ]]; do ((SECONDS < end)) || return 1; sleep 0.1; done
}

# end_session SESSION: asks its processes to end, and kills those that do not.
end_session() {
  local pids
  mapfile -t pids < <(members "$1")
  ((${#pids[@]})) && kill "${pids[@]}" 2>/dev/null
  has_ended "$1" 10 && return
  mapfile -t pids < <(members "$1")
  ((${#pids[@]})) && kill -KILL "${pids[@]}" 2>/dev/null
  has_ended "$1" 5
}

# step NAME SECONDS COMMAND: runs a command line, shows what it prints, remembers how it ended. After SECONDS it is ended. Processes that
# it leaves behind are named and ended.
step() {
  local name=$1 limit=$2 log=$logs/$1 started=$SECONDS result=ok code=0 shown left pid
  printf '\n==> %s\n' "$name"
  : >"$log"
  setsid bash -c "$3" </dev/null >"$log" 2>&1 & running=$!
  tail -n +1 -f --pid="$running" -s 0.2 "$log" & shown=$!
  while kill -0 "$running" 2>/dev/null; do
    if ((SECONDS - started >= limit)); then
      result="FAILED: not done after $limit s, its time limit"
      end_session "$running"
      break
    fi
    sleep 0.2
  done
  wait "$running" 2>/dev/null || code=$?
  wait "$shown" 2>/dev/null
  [[ $result == ok ]] && ((code)) && result="FAILED: exit status $code"
  # Daemons of a screen or a bus need a moment after their script.
  if ! has_ended "$running" 3; then
    for pid in $(members "$running"); do left+="${left:+, }$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | cut -c -80)"; done
    end_session "$running"
    [[ $left ]] && result+="; left running and ended here: $left"
  fi
  running=
  [[ $result == ok* ]] || failed+=("$name")
  names+=("$name")
  results+=("$result, $((SECONDS - started)) s")
  printf '<== %s: %s\n' "$name" "${results[-1]}"
}

# where_it_failed NAME: the lines of its log that say so.
where_it_failed() {
  printf '\n==> %s, where it failed; again: bash tests/run.sh %s\n' "$1" "$1"
  grep -aE '^(failed: |  again: )' "$logs/$1" | head -n 24
  # What the display says of its own surroundings is no failure.
  grep -aE '^error|No such file|^tests/[a-z_]*\.sh: ' "$logs/$1" | grep -v XDG_RUNTIME_DIR | cut -c -200 | sort -u | head -n 8
  grep -aE -A2 'panicked at' "$logs/$1" | cut -c -200 | head -n 12
}

# sum_up: what was run, how it ended, how long it took. Fails if a step failed.
sum_up() {
  local i what
  for what in "${failed[@]}"; do
    printf '\n==> %s, how it ended\n' "$what"
    tail -n 15 "$logs/$what"
  done
  printf '\n'
  for i in "${!names[@]}"; do printf '%-9s %s\n' "${names[i]}" "${results[i]}"; done
  for what in "${left_out[@]}"; do printf 'left out: %s\n' "$what"; done
  cat target/nextest/*/flaky.txt 2>/dev/null | sed 's/^/flaky: /'
  for what in "${failed[@]}"; do where_it_failed "$what"; done
  printf '%s after %d min %02d s\n' "$( ((${#failed[@]})) && echo FAILED || echo "all passed")" "$((SECONDS / 60))" "$((SECONDS % 60))"
  ((${#failed[@]} == 0))
}
