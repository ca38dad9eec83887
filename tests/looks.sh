#!/usr/bin/env bash
# Takes pictures of the window as a person would see it, from an empty home: the first screen, a chat with its map, a pinned neuron, a
# token that is held, a message that is too long, models, settings, licences; at four sizes, dark and light. Look at them.
#
# Usage: bash tests/looks.sh FOLDER [PROGRAM]    PROGRAM: the built binary [default: target/debug/thermocline]
#   SIZES="1280x800 900x600" and THEMES=dark in the environment choose some of them; MODEL=FILE opens another model.
# Needs the packages that `bash tests/window.sh --packages` lists.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:?usage: bash tests/looks.sh FOLDER [PROGRAM]}
mkdir -p "$folder"
folder=$(realpath "$folder") program=$(realpath "${2:-target/debug/thermocline}")
model=${MODEL:+$(realpath "$MODEL")}
sizes=${SIZES:-1280x800 1920x1080 2560x1440 900x600} themes=${THEMES:-dark light}

fail() { echo "tests/looks.sh: $*" >&2; [[ -s ${log:-} ]] && tail -20 "$log" >&2; exit 1; }
[[ -x $program ]] || fail "no program at $program: cargo build"
bus_launcher=
for at in /usr/libexec /usr/lib/at-spi2-core /usr/lib; do [[ -x $at/at-spi-bus-launcher ]] && bus_launcher=$at/at-spi-bus-launcher; done
[[ $bus_launcher ]] || fail "at-spi-bus-launcher is missing"

work=$(mktemp -d) pids=()
clean() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap clean EXIT
export XDG_RUNTIME_DIR=$work/run LIBGL_ALWAYS_SOFTWARE=1
unset WAYLAND_DISPLAY XDG_CONFIG_HOME XDG_DATA_HOME XDG_CACHE_HOME
mkdir -m 700 "$XDG_RUNTIME_DIR"
log=$work/log
. tests/screen.sh
screen "$work" 2560x1440 || fail "no screen"
pids+=("$screen_pid")
dbus-daemon --session --nofork --print-address=3 3>"$work/bus" 2>/dev/null & pids+=($!)
for _ in {1..50}; do [[ -s $work/bus ]] && break; sleep 0.1; done
DBUS_SESSION_BUS_ADDRESS=$(<"$work/bus"); export DBUS_SESSION_BUS_ADDRESS
"$bus_launcher" --launch-immediately --a11y=1 --screen-reader=1 >/dev/null 2>&1 & pids+=($!)
sleep 0.5

seen() { /usr/bin/python3 tests/seen.py "$@"; }
has_window() { window=$(xdotool search --onlyvisible --name '^Thermocline$' 2>/dev/null | head -1); [[ $window ]]; }
# shot NAME: once the window has come to rest.
shot() { sleep 1.5; import -window "$window" "$folder/$1-$theme-$size.png"; }
# click NAME: what cannot be found or lies outside the window is left out.
click() {
  local box
  read -ra box <<<"$(seen wait 15 "$1" 2>/dev/null || true)"
  ((${#box[@]} == 4)) || { echo "    not found: $1 ($theme $size)"; return 0; }
  xdotool mousemove --window "$window" "$((box[0] + box[2] / 2))" "$((box[1] + box[3] / 2))"; sleep 0.2; xdotool click 1; sleep 0.5
}
aside() { xdotool mousemove --window "$window" 4 4; }
quit() { seen close "$window" || true; for _ in {1..100}; do kill -0 "$app" 2>/dev/null || return 0; sleep 0.1; done; kill "$app" 2>/dev/null || true; }

for size in $sizes; do
  for theme in $themes; do
    export HOME=$work/home-$theme-$size
    mkdir -p -m 700 "$HOME/.config/thermocline"
    echo "{\"theme\": \"$theme\"}" >"$HOME/.config/thermocline/settings.json"
    "$program" ${model:+"$model"} >>"$log" 2>&1 & app=$! && pids+=("$app")
    for _ in {1..600}; do has_window && break; sleep 0.1; done
    [[ $window ]] || fail "no window"
    xdotool windowsize "$window" "${size%x*}" "${size#*x}" windowfocus "$window"
    seen wait 60 "entry:Message" >/dev/null || fail "no message field"
    sleep 3
    aside; shot first
    click "entry:Message"
    xdotool type --delay 5 "Tell me a story about a frog."
    xdotool key Return
    # Until the answer can be copied, it is being written.
    seen wait 120 "push button:Copy answer" >/dev/null || true
    aside; shot chat
    if ((${size%x*} >= 1100)); then
      read -ra box <<<"$(seen wait 10 "image:Map of neurons" 2>/dev/null || true)"
      if ((${#box[@]} == 4)); then
        xdotool mousemove --window "$window" "$((box[0] + 80))" "$((box[1] + 60))"; sleep 0.3; xdotool click 1
        sleep 0.5; aside; shot pinned
        click "push button:Close this card"
        click "push button:Hold this token"
        click "push button:Token before"
        aside; shot held
        click "toggle button:Compare"
        aside; shot compared
        click "toggle button:Compared"
        click "toggle button:Live"
      fi
    else
      xdotool key ctrl+j; aside; shot neurons; xdotool key ctrl+j
    fi
    click "entry:Message"
    xdotool type --delay 0 "$(printf 'This is a rather long sentence that says nothing at all, number %s. ' {1..60})"
    sleep 2
    xdotool key Return
    aside; shot long
    xdotool key ctrl+a BackSpace
    xdotool key ctrl+m; aside; shot models
    xdotool key ctrl+comma; aside; shot settings
    quit
    echo "    $theme $size"
  done
done
echo "$(find "$folder" -name '*.png' | wc -l) pictures in $folder"
