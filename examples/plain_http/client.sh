#!/usr/bin/env bash
# Train the bundled model to reverse words with bash, curl and sed: see README.md.
# Usage: client.sh [JOB]   Environment: SWARM_URL, SWARM_TOKEN
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
url=${SWARM_URL:-http://127.0.0.1:10086}
job=$(tr -d '\n' <"${1:-$here/job.yaml}")
client="shell-$$"
lease_s=15
words=(ABC TOY LAMP QUIZ FROG NEST CUBE MILK DRUM WOLF PINE SALT)
open=$(mktemp -d) # one file per open episode

# --retry waits out a 503 for as long as the server asks, and a server that is being started again.
request() { # METHOD PATH [BODY [KEY]]
    curl --silent --show-error --fail-with-body --max-time 60 --retry 30 --retry-connrefused --retry-max-time 120 \
        -X "$1" "$url/v1/$2" -H "authorization: Bearer ${4:-${SWARM_TOKEN:-none}}" \
        -H 'content-type: application/json' ${3:+-d "$3"}
}
text() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p"; }    # a string field of a JSON object on one line
number() { sed -n "s|.*\"$1\": *\([0-9.e+-]*\).*|\1|p"; } # a number
step() { request GET swarm/status | number step; }

keep_alive() { # until this script is gone
    while sleep $((lease_s / 3)) && kill -0 $$ 2>/dev/null; do
        local ids
        ids=$(ls "$open" | sed 's/.*/"&"/' | paste -sd, -)
        request POST swarm/heartbeat "{\"client_id\": \"$client\", \"episode_ids\": [$ids]}" || true
    done
}

episode() { # WORD TASK_ID
    local begun id key answer reward=0
    begun=$(request POST swarm/episodes/begin \
        "{\"client_id\": \"$client\", \"task_id\": \"$2\", \"lease_s\": $lease_s}") || return 0
    id=$(text episode_id <<<"$begun") key=$(text api_key <<<"$begun")
    touch "$open/$id"
    if answer=$(request POST chat/completions \
        "{\"model\": \"default\", \"max_tokens\": 12, \"messages\": [{\"role\": \"user\", \"content\": \"Reverse: $1\"}]}" \
        "$key"); then
        [[ $(text content <<<"$answer") == "$(reverse "$1")" ]] && reward=1
        request POST "swarm/episodes/$id/end" \
            "{\"client_id\": \"$client\", \"task_id\": \"$2\", \"reward\": $reward}" >/dev/null || true
    else
        request POST "swarm/episodes/$id/abort" '{"reason": "agent_failed", "final": true}' >/dev/null || true
    fi
    rm -f "$open/$id"
}

reverse() {
    local word=$1 reversed=
    while [[ -n $word ]]; do reversed=${word:0:1}$reversed word=${word:1}; done
    echo "$reversed"
}

request PUT swarm/job "{\"job\": $job}" >/dev/null
[[ $(request GET swarm/status | text state) == OFFLINE ]] && request POST swarm/engine/start '{}' >/dev/null
until [[ $(request GET swarm/status | text state) == ROLLING ]]; do sleep 0.2; done

keep_alive >/dev/null 2>&1 &
heart=$!
trap 'kill $heart 2>/dev/null; rm -rf "$open"' EXIT
total_steps=$(number total_steps <<<"$job")
num_repeat=$(number num_repeat <<<"$job")
task=0 shown=$(step)
while (($(step) < total_steps)); do
    word=${words[task % ${#words[@]}]} attempts=()
    for ((repeat = 0; repeat < num_repeat; repeat++)); do
        episode "$word" "$client/$task" &
        attempts+=($!)
    done
    wait "${attempts[@]}"
    task=$((task + 1))
    if (($(step) > shown)); then
        shown=$(step)
        echo "step $shown  reward $(request GET swarm/status | number critic/score/mean)"
    fi
done
echo "done: $(step) steps"
