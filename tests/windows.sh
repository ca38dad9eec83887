#!/usr/bin/env bash
# Builds the Windows program and every test of it on Linux and runs them under Wine: unit tests, reference models, the command line,
# files in odd places, a terminal, the window on a virtual screen. Vulkan is the host's, so that GPU tests run on the driver that they
# run on here (software where there is no GPU). What Wine cannot show is said at the end. Needs Debian or Ubuntu; installs what it misses.
#
# Usage: bash tests/windows.sh [--built] [--pictures FOLDER] [PART]...
#   PART                of unit, engine, app, places, terminal, installer, window [default: all]
#   --built             runs what was built last, without a look at the sources
#   --pictures FOLDER   screenshots of the window go there [default: target/windows/pictures]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TARGET=x86_64-pc-windows-gnu
PACKAGES=(gcc-mingw-w64-x86-64-posix g++-mingw-w64-x86-64-posix wine wine64 xvfb openbox xdotool imagemagick sqlite3 curl python3
  mesa-vulkan-drivers libvulkan1 libgl1 libgl1-mesa-dri libegl1 nsis)
home=$PWD/target/windows
pictures=$home/pictures built=
[[ ${1:-} == --built ]] && { built=yes; shift; }
[[ ${1:-} == --pictures ]] && { pictures=$(realpath -m "${2:?--pictures needs a folder}"); shift 2; }
parts=("$@")
((${#parts[@]})) || parts=(unit engine app places terminal installer window)
fail() { echo "tests/windows.sh: $*" >&2; exit 1; }
for part in "${parts[@]}"; do
  [[ " unit engine app places terminal installer window " == *" $part "* ]] || fail "$part is no part"
done

missing=()
for package in "${PACKAGES[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "installs ${missing[*]}"
  as_root=$([[ $EUID -eq 0 ]] || echo sudo)
  { $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; } \
    || fail "these packages are needed: ${missing[*]}"
fi
rustup target list --installed | grep -qx "$TARGET" || rustup target add "$TARGET"
mkdir -p "$home" "$pictures"

program=$PWD/target/$TARGET/debug/thermocline.exe
if [[ -z $built ]]; then
  echo "==> build"
  cargo test --workspace --locked --target "$TARGET" --no-run --message-format json-render-diagnostics >"$home/messages"
  cargo build --workspace --locked --target "$TARGET" --bin thermocline --bin thermocline-server
  # Every test program: its kind, its name, the folder of its package, its file.
  python3 - "$home/messages" >"$home/tests.tsv" <<'PYTHON'
import json, os, sys
for line in open(sys.argv[1], encoding="utf-8"):
    it = json.loads(line)
    if it["reason"] == "compiler-artifact" and it["profile"]["test"] and it["executable"]:
        target = it["target"]
        print(target["kind"][0], target["name"].replace("-", "_"), os.path.dirname(it["manifest_path"]), it["executable"], sep="\t")
PYTHON
fi
[[ -s $program && -s $home/tests.tsv ]] || fail "nothing is built"

# Wine, with a system drive of its own, and a screen: drivers of GPUs are loaded with that of the screen.
work=$(mktemp -d) pids=()
export WINEPREFIX=$home/prefix WINEDEBUG=-all WINEDLLOVERRIDES='mscoree,mshtml=' LC_ALL=C.UTF-8 LIBGL_ALWAYS_SOFTWARE=1
export XDG_RUNTIME_DIR=$work/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
unset WAYLAND_DISPLAY WGPU_BACKEND
clean() {
  wineserver -k 2>/dev/null || true
  ((${#pids[@]})) && kill "${pids[@]}" 2>/dev/null
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap clean EXIT
. tests/screen.sh
screen "$work" 1600x1000 || fail "no screen"
pids+=("$screen_pid")
openbox >"$work/openbox.log" 2>&1 & pids+=($!)
[[ -d $WINEPREFIX ]] || timeout 300 wine wineboot -i >"$work/wine.log" 2>&1 || fail "Wine does not start: $(tail -5 "$work/wine.log")"
# Rust's standard library takes random numbers from a library that Wine has had for a short time only.
system=$WINEPREFIX/drive_c/windows/system32
if [[ ! -e $system/bcryptprimitives.dll ]]; then
  cat >"$work/random.c" <<'C'
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T len) { return SystemFunction036(to, (ULONG)len); }
C
  x86_64-w64-mingw32-gcc -shared -O -s -o "$system/bcryptprimitives.dll" "$work/random.c" -ladvapi32
fi
# Stays until the end, so that not every program starts a system.
wineserver -p
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
summary=() failed=()
say() { printf '    %s\n' "$*"; }
# The program, its words without Windows' line ends.
it() { timeout 300 wine "$program" "$@" 2>"$work/error" | tr -d '\r'; }

# tested FOLDER FILE [OPTION]...: runs a test program in its package's folder; adds what it says to `log`, its tests to `passed` and
# `wrong`. One that says no numbers counts as one test.
tested() {
  local folder=$1 file=$2 code=0 n
  shift 2
  # Without Direct3D 12: Wine's has an adapter, no shader compiler, and would be taken for hardware.
  (cd "$folder" && THERMOCLINE_TEST_PROGRAM=$(winepath -w "$program") CARGO_MANIFEST_DIR=$(winepath -w "$folder") \
    WINEDLLOVERRIDES="$WINEDLLOVERRIDES;d3d12=" \
    timeout 3000 wine "$file" "$@" </dev/null) >"$work/said" 2>&1 || code=$?
  tr -d '\r' <"$work/said" >>"$log"
  n=$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' "$work/said")
  ((passed += ${n:-$((code == 0))})) || true
  n=$(sed -n 's/^test result: .* \([0-9]*\) failed.*/\1/p' "$work/said")
  ((wrong += ${n:-$((code != 0))})) || true
  ((code == 0)) || { failed+=("$name: $test"); grep -aE '\.\.\. FAILED|panicked' "$work/said" || tail -5 "$work/said"; }
}
# suite NAME TEST...: the test programs KIND:NAME, which have to be there. Tests that look at a clock are run one by one, behind the rest.
suite() {
  local name=$1 log=$home/$1.log started=$SECONDS passed=0 wrong=0 kind test folder file
  shift
  : >"$log"
  for wanted in "$@"; do
    awk -F'\t' -v it="$wanted" '$1 ":" $2 == it { found = 1 } END { exit !found }' "$home/tests.tsv" || fail "$name: no test program $wanted"
  done
  while IFS=$'\t' read -r kind test folder file; do
    [[ " $* " == *" $kind:$test "* ]] || continue
    echo "    $test"
    case $test in
      timing*) tested "$folder" "$file" --test-threads 1 ;;
      *)
        tested "$folder" "$file" --skip timing::
        tested "$folder" "$file" --test-threads 1 timing::
        ;;
    esac
  done <"$home/tests.tsv"
  ((passed > 0)) || failed+=("$name: no test has run")
  summary+=("$name: $passed passed, $wrong failed, $((SECONDS - started)) s")
}
part_unit() { suite unit lib:thermocline lib:thermocline_{host,server,terminal,engine,base,cpu,formats,gpu,lab,model,run,text,shaders}; }
part_engine() { suite engine test:engine test:vocabularies test:timing_memory; }
part_app() { suite app test:app test:timing; }

# Files in folders with blanks, umlauts, Chinese, a path of more than 260 characters, and Windows' other ways to write a path.
part_places() {
  local drive=$WINEPREFIX/drive_c/places long place file said started=$SECONDS checks=0 story again
  rm -rf "$drive"
  long=$(printf 'a folder of thirty-one letters %.0s/' {1..9})
  # Wine looks for the shares of other computers in a folder.
  mkdir -p "$WINEPREFIX/dosdevices/unc/bookshop"
  ln -sfn "$drive" "$WINEPREFIX/dosdevices/unc/bookshop/places"
  story=$(it run --device cpu --quiet --temp 0 -n 24 -p "Tell me a story about a cat and a boat.")
  [[ $story == "Once upon a time"* ]] || fail "places: no story: $story $(<"$work/error")"
  for place in "with blanks" "Müllers Bücher" "模型 и модели" "$long"; do
    mkdir -p "$drive/$place"
    cp assets/storyteller/storyteller-F16.gguf "$drive/$place/märchen 故事.gguf"
    # On a drive, as a file system path of any length, and over the network.
    for file in "C:\\places\\${place//\//\\}" "\\\\?\\C:\\places\\${place//\//\\}" "\\\\bookshop\\places\\${place//\//\\}"; do
      file=${file%\\}
      said=$(it run --device cpu --quiet --temp 0 -n 24 -m "$file\\märchen 故事.gguf" -p "Tell me a story about a cat and a boat.")
      [[ $said == "$story" ]] || fail "places: another story from $file: $said $(<"$work/error")"
      said=$(it inspect "$file\\märchen 故事.gguf" --json)
      [[ $said == *'"architecture": "llama"'* ]] || fail "places: inspect $file: $said $(<"$work/error")"
      said=$(it convert "$file\\märchen 故事.gguf" --type q8_0 --out "$file\\kürzer 短.gguf")
      [[ $said == *Q8_0* && -s $drive/$place/kürzer\ 短.gguf ]] || fail "places: convert in $file: $said $(<"$work/error")"
      # Twice, so that a file is written over.
      for again in first second; do
        it prepare -m "$file\\märchen 故事.gguf" --tokens 2k --json >/dev/null || fail "places: $again prepare in $file: $(<"$work/error")"
        [[ -s $drive/$place/märchen\ 故事.thermocline.gguf ]] || fail "places: no sidecar in $file: $(ls "$drive/$place")"
      done
      ((checks += 5))
    done
    [[ $(find "$drive/$place" -maxdepth 1 -type f | wc -l) == 3 ]] || fail "places: left in $place: $(ls "$drive/$place")"
  done
  local length=$((${#long} + 30))
  ((length > 260)) || fail "places: the long path has only $length characters"
  summary+=("places: $checks passed, 0 failed, $((SECONDS - started)) s (blanks, umlauts, Chinese, $length characters, \\\\?\\, shares)")
}

# until_ SECONDS WHAT COMMAND...: waits for it to succeed.
until_() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    if ((SECONDS >= end)); then
      import -window root "$pictures/failed.png" 2>/dev/null || true
      fail "not in time: $what; see $pictures/failed.png; $(tail -qn 5 "$work"/{window,server}.log 2>/dev/null)"
    fi
    sleep 0.2
  done
}
# serving ARGUMENT...: starts a server; sets `server` and `address`.
serving() {
  local end=$((SECONDS + 120))
  : >"$work/server.log"
  wine "$program" serve --port 0 --device cpu "$@" >"$work/server.log" 2>&1 & server=$!
  pids+=("$server")
  until address=$(grep -aom1 'http://[0-9.]*:[0-9]*' "$work/server.log"); do
    kill -0 "$server" 2>/dev/null || fail "the server ended: $(<"$work/server.log")"
    ((SECONDS < end)) || fail "the server does not say where it listens: $(<"$work/server.log")"
    sleep 0.2
  done
}
# Ends every Windows program of that name.
end_it() { wine taskkill /f /im thermocline.exe >/dev/null 2>&1 || true; }

# A terminal of Windows' own, Ctrl-C, letters of other alphabets through pipes; a server with a client; a sidecar that is written anew
# while a server has it mapped; a server and a preparation that are killed.
part_terminal() {
  local started=$SECONDS said drive=$WINEPREFIX/drive_c/places/served server address client preparing code=0
  local endless=(run --device cpu --quiet -p "Tell me a story." --logit-bias "1=-inf" --on-full shift)
  said=$(python3 tests/console.py more:200 'keys:\x03' ends:130 -- wine "$program" "${endless[@]}") || fail "terminal: Ctrl-C does not end run: $said"
  say "Ctrl-C ends an answer, exit code 130"
  said=$(python3 tests/console.py raw see:\> 'type:Tell me a story.' see:Once 'see:[prompt' type:/exit ends:0 -- wine "$program" chat --device cpu --temp 0 -n 24) \
    || fail "terminal: chat: $said"
  say "a chat in the terminal answers and ends"
  # In by a pipe and by an argument, out again by its numbers.
  local text="Grüße 你好" ids
  said=$(printf '%s' "$text" | it tokenize --json)
  [[ $said == *"\"text\":\"$text\""* && $said == "$(it tokenize --json "$text")" ]] || fail "terminal: tokenize: $said $(<"$work/error")"
  ids=$(python3 -c 'import json, sys; print(*json.loads(sys.argv[1])["ids"], sep=",")' "$said")
  [[ $(it tokenize --ids "$ids") == "$text" ]] || fail "terminal: tokenize --ids $ids: $(it tokenize --ids "$ids")"
  say "letters of other alphabets pass through pipes and arguments"

  mkdir -p "$drive"
  cp assets/storyteller/storyteller-F16.gguf "$drive/model.gguf"
  it prepare -m 'C:\places\served\model.gguf' --tokens 2k --json >/dev/null || fail "terminal: prepare: $(<"$work/error")"
  serving 'C:\places\served\model.gguf' --on-full shift
  said=$(curl -sf --max-time 120 -H 'content-type: application/json' "$address/v1/chat/completions" \
    -d '{"messages":[{"role":"user","content":"Tell me a story about a cat and a boat."}],"max_tokens":24,"temperature":0}') \
    || fail "terminal: the server does not answer: $(<"$work/server.log")"
  [[ $said == *"Once upon a time"* ]] || fail "terminal: the server answers $said"
  said=$(curl -sf --max-time 120 -N -H 'content-type: application/json' "$address/v1/chat/completions" \
    -d '{"messages":[{"role":"user","content":"Grüße, 你好"}],"max_tokens":200,"stream":true,"logit_bias":{"1":-100}}') || fail "terminal: the server does not stream"
  # Tokens that come while an event is being sent go together in the next one.
  [[ $(grep -c '"delta":{"content":"[^"]' <<<"$said") -ge 5 && $said == *'data: [DONE]'* ]] || fail "terminal: the server streams $said"
  say "a server answers, whole and streamed"
  it prepare -m 'C:\places\served\model.gguf' --tokens 3k --seed 1 --json >"$work/said" || fail "terminal: prepare beside a server: $(<"$work/error")"
  curl -sf --max-time 120 -H 'content-type: application/json' "$address/v1/completions" -d '{"prompt":"Once","max_tokens":8}' >/dev/null \
    || fail "terminal: the server has ended: $(<"$work/server.log")"
  say "a sidecar that a server uses is prepared again"

  # Killed while it streams: its client is told, and the next server answers as before.
  curl -sN --max-time 120 -H 'content-type: application/json' "$address/v1/completions" \
    -d '{"prompt":"Once","max_tokens":100000,"stream":true,"logit_bias":{"1":-100}}' >"$work/stream" & client=$!
  until_ 60 "the beginning of a stream" grep -q '"text":"[^"]' "$work/stream"
  end_it
  wait "$server" 2>/dev/null || true
  wait "$client" || code=$?
  # Neither the time that it was given nor an end that is none.
  ((code != 0 && code != 28)) && ! grep -qF '[DONE]' "$work/stream" || fail "terminal: the client of a server that was killed ends with $code"
  serving 'C:\places\served\model.gguf' --on-full shift
  said=$(curl -sf --max-time 120 -H 'content-type: application/json' "$address/v1/completions" -d '{"prompt":"Once","max_tokens":8,"temperature":0}') \
    || fail "terminal: after a kill the server does not answer: $(<"$work/server.log")"
  [[ $said == *'" upon a time'* ]] || fail "terminal: after a kill the server answers $said"
  end_it
  wait "$server" 2>/dev/null || true
  say "a server that is killed in the middle of a stream starts again"
  # Killed while it works: the sidecar is the old one, and the next preparation is not hindered by what is left.
  cp "$drive/model.thermocline.gguf" "$work/sidecar"
  wine "$program" prepare -m 'C:\places\served\model.gguf' --tokens 512k --seed 2 --json >/dev/null 2>&1 & preparing=$!
  sleep 8
  kill -0 "$preparing" || fail "terminal: a preparation ended before it was killed"
  end_it
  wait "$preparing" 2>/dev/null || true
  cmp "$drive/model.thermocline.gguf" "$work/sidecar" || fail "terminal: a preparation that was killed leaves another sidecar"
  it prepare -m 'C:\places\served\model.gguf' --tokens 2k --seed 2 --json >/dev/null || fail "terminal: prepare after a kill: $(<"$work/error")"
  ! cmp -s "$drive/model.thermocline.gguf" "$work/sidecar" || fail "terminal: prepare after a kill leaves the old sidecar"
  say "a preparation that is killed leaves the sidecar that was there"
  summary+=("terminal: Ctrl-C, chat, serve, prepare beside a server, both killed, $((SECONDS - started)) s")
}

# The chats are read from a copy: SQLite's locks are not the same ones in Wine and here.
ask() {
  rm -f "$work"/copy.db*
  local suffix
  for suffix in '' -wal; do cp "$data/chats.db$suffix" "$work/copy.db$suffix" 2>/dev/null || true; done
  sqlite3 "$work/copy.db" "$1" 2>/dev/null || true
}
is_state() { [[ $(ask "SELECT state FROM message WHERE role = 'assistant' ORDER BY id DESC LIMIT 1") == "$1" ]]; }
is_over() { is_state complete || is_state cut; }
length() { ask "SELECT length(content) FROM message WHERE role = 'assistant' ORDER BY id DESC LIMIT 1"; }
longer() { local now; now=$(length); ((${now:-0} > $1)); }
has_window() {
  kill -0 "$app" 2>/dev/null || fail "window: the program ended: $(tail -20 "$work/window.log")"
  window=$(xdotool search --onlyvisible --name '^Thermocline$' 2>/dev/null | head -1)
  [[ $window ]]
}
gone() { ! kill -0 "$app" 2>/dev/null; }
shot() { import -window "$window" "$pictures/$1.png"; }
differ() { local n; n=$(compare -metric AE "$1" "$2" null: 2>&1) || true; ((${n%%[.e ]*} > 200)); }
drawn() { grep -q "\"worked\": \"$1\"" "$settings" 2>/dev/null; }
setting() { grep -q "$1" "$settings"; }
# open: starts the program as the desktop does, and waits until a window is drawn.
open() {
  wine "$program" >>"$work/window.log" 2>&1 & app=$!
  pids+=("$app")
  until_ 180 "a window" has_window
  xdotool windowsize "$window" 1280 800 windowmove "$window" 40 40 windowfocus "$window"
  sleep 4
}
# close_it: as the title bar does; it must end well.
close_it() {
  python3 tests/seen.py close "$window"
  until_ 60 "the program's end after its window was closed" gone
  wait "$app" || fail "window: the program ended with $?: $(tail -20 "$work/window.log")"
}
prompt() {
  xdotool windowfocus "$window" key ctrl+n
  sleep 1
  xdotool key ctrl+l
  sleep 1
  xdotool type --delay 20 "$1"
  sleep 0.5
  xdotool key Return
}
# moves: whether the map's place in the window changes while an answer is written.
moves() {
  local place=370x235+884+88
  import -window "$window" -crop "$place" +repage "$work/map-1.png"
  while is_state streaming; do
    import -window "$window" -crop "$place" +repage "$work/map-2.png"
    differ "$work/map-1.png" "$work/map-2.png" && return
  done
  return 1
}

part_window() {
  local started=$SECONDS user data settings app window told adapter
  user=$(dirname "$(find "$WINEPREFIX/drive_c/users" -maxdepth 2 -name AppData -not -path '*/Public/*' | head -1)")
  data=$user/AppData/Local/Thermocline/data settings=$user/AppData/Roaming/Thermocline/config/settings.json
  rm -rf "$user"/AppData/{Local,Roaming}/Thermocline
  : >"$work/window.log"

  # From an empty home: Direct3D 12 is tried, fails in Wine, and Vulkan draws.
  open
  until_ 60 "a window that Vulkan draws" drawn vulkan
  shot start
  say "a window from an empty home, drawn by Vulkan after Direct3D 12 failed"
  close_it

  # Again, now with everything on the GPU, where a story takes a while.
  adapter=$(it devices --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["gpu"][0]["name"])')
  python3 - "$settings" "$adapter" <<'PYTHON'
import json, sys
path, adapter = sys.argv[1:]
settings = json.load(open(path, encoding="utf-8"))
settings.setdefault("models", {}).setdefault("builtin:storyteller", {})["device"] = adapter
json.dump(settings, open(path, "w", encoding="utf-8"), indent=2)
PYTHON
  open
  sleep 10
  for told in "cat and a boat" dragon bear frog; do
    prompt "Tell me a long story about a $told."
    until_ 60 "an answer under way" is_state streaming
    until_ 60 "text on disk while it streams" longer 40
    moves && break
    shot "still-${told// /-}"
  done
  is_state streaming || fail "window: no map moved while a story was written"
  shot streaming
  say "a story streams and the map moves"
  until_ 240 "the end of the story" is_over
  sleep 1
  shot chat
  told=$(ask "SELECT role, content FROM message ORDER BY id")
  close_it
  say "closed by its title bar, exit code 0"
  [[ $(ask "PRAGMA integrity_check") == ok ]] || fail "window: the chats are damaged"

  open
  [[ $(ask "SELECT role, content FROM message ORDER BY id") == "$told" ]] || fail "window: the chat is another"
  drawn vulkan || fail "window: what drew it is forgotten"
  sleep 5
  shot vram
  say "opened again, the chat is there; the model is on $adapter"
  # The slider, by its place in a window of this size; what is above it may take some lines more or less.
  local n slider
  for slider in 739 724 754 709 769 694 784 679 664 649 634 619; do
    xdotool mousemove --window "$window" 1130 "$slider" mousedown 1
    for n in {1..10}; do
      xdotool mousemove --window "$window" "$((1130 - n * 22))" "$slider"
      sleep 0.1
    done
    xdotool mouseup 1
    sleep 2
    ! setting at_most || break
  done
  until_ 30 "a budget in the settings after the slider was dragged" setting at_most
  prompt "Tell me a story about a bird."
  until_ 60 "an answer under way" is_state streaming
  until_ 60 "text on disk while it streams" longer 40
  shot slider
  say "the VRAM slider was dragged, and an answer comes"

  # Killed in the middle of it.
  end_it
  until_ 30 "the end of a program that was killed" gone
  local kept
  kept=$(length)
  [[ $(ask "PRAGMA integrity_check") == ok ]] || fail "window: killed, it leaves damaged chats"
  ((kept > 0)) || fail "window: killed, it leaves no text"
  # Its Direct3D may wait for ever for a program that was killed.
  wineserver -k
  wineserver -p
  open
  shot killed
  ((kept <= $(length))) || fail "window: text that was on disk is gone"
  close_it
  say "killed while it wrote: $kept letters of the answer are kept"

  # Without Vulkan, which drew it before, and with Direct3D 12 as it is in Wine.
  WINEDLLOVERRIDES="$WINEDLLOVERRIDES;vulkan-1,winevulkan=" open
  until_ 60 "a window that OpenGL draws" drawn gl
  shot gl
  close_it
  say "without Vulkan OpenGL draws it"
  summary+=("window: opens, streams, map moves, closes, reopens, slider, killed, falls from Direct3D 12 to Vulkan and to OpenGL, $((SECONDS - started)) s; $(find "$pictures" -name '*.png' | wc -l) pictures in $pictures")
}

part_installer() {
  local started=$SECONDS
  bash packaging/windows/test.sh "${program%/*}" "$home" >"$home/installer.log" 2>&1 || fail "installer: $(tail -20 "$home/installer.log")"
  summary+=("installer: $(tail -1 "$home/installer.log" | sed 's/^installer: //'), $((SECONDS - started)) s")
}

for part in "${parts[@]}"; do
  echo "==> $part"
  "part_$part"
done

echo
echo "Windows program $version, $(wine --version), adapters: $(it devices --json | python3 -c 'import json, sys; print("; ".join(gpu["name"] + " (" + gpu.get("backend", "") + ")" for gpu in json.load(sys.stdin)["gpu"]))')"
printf '%s\n' "${summary[@]}"
echo "not shown by Wine: Direct3D 12 at work (vkd3d has no shader compiler there), DXGI's readings of memory, scaling per monitor, dark title bars, letters that
are not ASCII typed into a console (its console takes UTF-8 for single bytes)"
((${#failed[@]} == 0)) || fail "${failed[*]}"
