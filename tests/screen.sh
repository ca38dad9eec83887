# For tests that open windows, to be sourced: a virtual screen that belongs to them. Needs the package xvfb.

# screen FOLDER WIDTHxHEIGHT: starts it and sets DISPLAY and `screen_pid`; files go to FOLDER. The calling script kills it.
# The server picks its number and tells when it can be connected to. Without -noreset it starts over whenever its last client
# has gone, and refuses connections meanwhile.
screen() {
  Xvfb -displayfd 3 -screen 0 "${2}x24" -nolisten tcp -noreset 3>"$1/display" 2>"$1/screen.log" & screen_pid=$!
  for _ in {1..100}; do [[ -s $1/display ]] && break; sleep 0.1; done
  [[ -s $1/display ]] || { echo "Xvfb did not start:" >&2; cat "$1/screen.log" >&2; return 1; }
  DISPLAY=:$(<"$1/display"); export DISPLAY
}
