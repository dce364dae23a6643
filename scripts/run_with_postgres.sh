#!/usr/bin/env bash
# Runs a command beside a PostgreSQL server of its own, which is gone afterwards: scripts/run_with_postgres.sh COMMAND...
# SWARM_TEST_POSTGRES_URL names the server to the command. Where there is no PostgreSQL, Debian's is installed.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }

find_programs() {
  local initdb
  initdb=$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -1)
  [ -x "$initdb" ] || initdb=$(command -v initdb) || return 1
  dirname "$initdb"
}

install_server() {
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then sudo=(sudo -n); fi
  if ! command -v apt-get >/dev/null || ! "${sudo[@]}" true 2>/dev/null; then
    echo "no PostgreSQL server is installed: run 'sudo apt-get install postgresql', or the like, and try again" >&2
    exit 1
  fi
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null
}

find_programs >/dev/null || install_server
programs=$(find_programs)

# PostgreSQL refuses to run as root.
owner=()
if [ "$(id -u)" -eq 0 ]; then
  if id postgres >/dev/null 2>&1; then owner=(runuser -u postgres --); else owner=(runuser -u nobody --); fi
fi

# Short, because the path of a socket has at most 107 characters, and readable by nobody else: the socket asks for no
# password, and there is no port.
directory=$(cd /tmp && "${owner[@]}" mktemp -d /tmp/swarm-postgres.XXXXXX)
postgres_ctl() { (cd /tmp && "${owner[@]}" "$programs/pg_ctl" --pgdata="$directory/data" --silent "$@"); }
clean_up() {
  postgres_ctl stop --mode=immediate 2>/dev/null || true
  rm -rf "$directory"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

(cd /tmp && "${owner[@]}" "$programs/initdb" --pgdata="$directory/data" --username=swarm --auth=trust --encoding=UTF8 \
  --locale="C.UTF-8" --no-sync >/dev/null)
# No test pulls the plug of the server itself, so nothing need wait for the disk.
postgres_ctl start --log="$directory/log" \
  --options="-c listen_addresses='' -c unix_socket_directories='$directory' -c fsync=off" ||
  { cat "$directory/log" >&2; exit 1; }

SWARM_TEST_POSTGRES_URL="postgresql://swarm@/postgres?host=$directory" "$@"
