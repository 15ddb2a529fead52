#!/usr/bin/env bats
# weft explain-hang on the dumps of PyTorch's flight recorder. Those in tests/flight/dumps were
# recorded by PyTorch 2.11 over NCCL: in `sleeper` and `1f1b` rank 2 slept in 2F3 in its third step,
# in `gpipe` and `ring` rank 1 in 1F3, in `skewed` rank 1 took no part after two steps. `1f1b` has
# no dump of rank 3; in `ring` only the last 60 entries were kept. `fsdp` and `fsdp-item` are whole
# jobs of 2 x 2 ranks (see tests/python/test_hang.py), with names of files in frames replaced.
# shellcheck disable=SC2154
load ../setup/cli_setup

dumps=$WEFT_SOURCE_DIR/tests/flight/dumps

@test "a PyTorch job: the rank that sleeps, and the action it sleeps in" {
  weft explain-hang "$dumps/sleeper" --program "$dumps/sleeper/program.csv"
  succeeds
  [ "${lines[0]}" = "rank 0: waits in 4RECV_F3 for rank 3, in step 3" ]
  [ "${lines[2]}" = "rank 2: is in 2F3, in step 3" ]
  [[ $output == *$'\nculprit: rank 2 (rank2.pkl)\n'* ]]
  weft explain-hang "$dumps/sleeper" --program "$dumps/sleeper/program.csv" --json
  succeeds
  [ "$(jq -c '[.culprit, .cycle, .hangs, .ranks[2].action]' <<<"$output")" = '[2,[],true,"2F3"]' ]
}

@test "a PyTorch job: the rank that has not begun its step" {
  weft explain-hang "$dumps/skewed" --program "$dumps/skewed/program.csv" --json
  succeeds
  [ "$(jq -c '[.culprit, .ranks[1].state, .ranks[1].step]' <<<"$output")" = '[1,"between steps",2]' ]
}

# They start sends and receives together, in another order than a program has them.
@test "schedules with one stage per rank" {
  "$WEFT" gen 1F1B -p 4 -m 8 -o 1f1b.csv
  "$WEFT" gen GPipe -p 3 -m 6 -o gpipe.csv
  while read -r folder program culprit action; do
    weft explain-hang "$dumps/$folder" --program "$program" --json
    succeeds
    [ "$(jq -c "[.culprit, .ranks[$culprit].action]" <<<"$output")" = "[$culprit,\"$action\"]" ]
  done <<'END'
1f1b 1f1b.csv 2 2F3
gpipe gpipe.csv 1 1F3
ring 1f1b.csv 1 1F3
END
}

@test "the table does instead of the program, and any rank's dump but the culprit's may be missing" {
  "$WEFT" gen Interleaved1F1B -p 4 -v 2 -m 8 -o table.csv
  for missing in 0 1 3; do
    rm -rf job
    cp -R "$dumps/sleeper" job
    rm "job/rank$missing.pkl"
    weft explain-hang job --program table.csv --json
    succeeds
    [ "$(jq .culprit <<<"$output")" = 2 ]
    [ "$(jq -r ".ranks[$missing].state" <<<"$output")" = missing ]
  done
}

# entry NAME BATCH STATE: one of a dump, as JSON.
entry() {
  printf '{"record_id": 0, "profiling_name": "nccl:%s", "p2p_seq_id": %s, "state": "%s"}' "$@"
}

# Rank 1 sleeps in 1F0. The batch of rank 2 has the skip connection's message, and lacks rank 1's.
@test "a graph: what a batch with several peers lacks" {
  printf '%s\n' '#graph,0>1,0>2,1>2' 0F0,0F1,0B0,0B1 1F0,1F1,1B0,1B1 2F0,2F1,2B0,2B1 >skip.csv
  mkdir job
  for rank in 0 1 2; do
    case $rank in
      0) entries="$(entry 'send 0->1' 1 scheduled), $(entry 'send 0->2' 1 scheduled), $(entry coalesced 1 completed),
                  $(entry 'send 0->1' 2 scheduled), $(entry 'send 0->2' 2 scheduled), $(entry coalesced 2 scheduled)" ;;
      1) entries="$(entry 'recv 1<-0' 1 scheduled), $(entry coalesced 1 completed)" ;;
      2) entries="$(entry 'recv 2<-0' 1 scheduled), $(entry 'recv 2<-1' 1 scheduled), $(entry coalesced 1 scheduled)" ;;
    esac
    echo "{\"entries\": [$entries]}" >job/rank$rank.json
  done
  weft explain-hang job --program skip.csv
  succeeds
  [ "${lines[0]}" = "rank 0: waits in 0SEND_F1 for rank 1, in step 1" ]
  [ "${lines[1]}" = "rank 1: is in 1F0, in step 1" ]
  [ "${lines[2]}" = "rank 2: waits in 2RECV_F0 for rank 1, in step 1" ]
  [[ $output == *$'\nculprit: rank 1 (rank1.json)\n'* ]]
}

# Of computations without a transfer between them, the dumps cannot name one.
@test "a rank that computes: all actions that it can be in" {
  printf '%s\n' 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0I0,0W0,0I1,0W1 \
    1RECV_F0,1RECV_F1,1F0,1F1,1I0,1W0,1SEND_B0,1I1,1SEND_B1,1W1 >program.csv
  mkdir job
  echo "{\"entries\": [$(entry 'send 0->1' 1 completed), $(entry 'send 0->1' 2 completed), $(entry 'recv 0<-1' 3 scheduled)]}" >job/rank0.json
  echo "{\"entries\": [$(entry 'recv 1<-0' 1 completed), $(entry 'recv 1<-0' 2 completed)]}" >job/rank1.json
  weft explain-hang job --program program.csv
  succeeds
  [ "${lines[1]}" = "rank 1: is in 1F0, 1F1, 1I0 or 1W0, in step 1" ]
  [[ $output == *"verdict: rank 1: is in 1F0, 1F1, 1I0 or 1W0, in step 1; 1 of 2 ranks wait"* ]]
  weft explain-hang job --program program.csv --json
  [ "$(jq -c '.ranks[1] | [.action, .actions]' <<<"$output")" = '[null,["1F0","1F1","1I0","1W0"]]' ]
  [ "$(jq -c '.ranks[0] | [.action, .actions]' <<<"$output")" = '["0RECV_B0",["0RECV_B0"]]' ]
}

@test "a program that contradicts the dumps is refused, with the entry" {
  "$WEFT" gen GPipe -p 4 -m 8 -o wrong.csv
  for folder in 1f1b ring; do
    weft explain-hang "$dumps/$folder" --program wrong.csv
    fails 1 ".pkl: the program contradicts entry " "by the program, which has " "hint: give the program that this job runs"
  done
  [[ $stderr == *"rank1.pkl: the program contradicts entry 1, where rank 1 sends to rank 2: that is 1SEND_F0 of step "* ]]
  for microbatches in 4 5 6 7 9 10 12 16; do
    "$WEFT" gen 1F1B -p 4 -m $microbatches -o wrong.csv
    weft explain-hang "$dumps/1f1b" --program wrong.csv
    fails 1 "the program contradicts entry "
    "$WEFT" gen GPipe -p 3 -m $microbatches -o wrong.csv
    if [ $microbatches != 6 ]; then
      weft explain-hang "$dumps/gpipe" --program wrong.csv
      fails 1 "the program contradicts entry "
    fi
  done
  "$WEFT" gen 1F1B -p 3 -m 6 -o wrong.csv
  weft explain-hang "$dumps/gpipe" --program wrong.csv
  fails 1 "the program contradicts entry "
}

# A job's rings are of one size, so what they have lost differs from rank to rank.
@test "dumps that have lost their beginning, anywhere in a step: the same culprit, and wrong programs" {
  "$WEFT" gen 1F1B -p 4 -m 8 -o 1f1b.csv
  "$WEFT" gen GPipe -p 3 -m 6 -o gpipe.csv
  "$WEFT" gen Interleaved1F1B -p 4 -v 2 -m 8 -o sleeper.csv
  python3 - "$WEFT" "$dumps" <<'END'
import json, os, pickle, subprocess, sys

weft, dumps = sys.argv[1:]


def ask(folder, program):
    words = [weft, "explain-hang", folder, "--program", program, "--json"]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stderr, json.loads(done.stdout or "{}")


os.mkdir("cut")
for name, culprit, action in (("1f1b", 2, "2F3"), ("gpipe", 1, "1F3"), ("sleeper", 2, "2F3")):
    for keep in range(26, 140, 3):
        for rank in range(4):
            if os.path.exists(f"{dumps}/{name}/rank{rank}.pkl"):
                with open(f"{dumps}/{name}/rank{rank}.pkl", "rb") as file:
                    dump = pickle.load(file)
                dump["entries"] = dump["entries"][-keep:]
                with open(f"cut/rank{rank}.pkl", "wb") as file:
                    pickle.dump(dump, file, protocol=2)
        status, error, found = ask("cut", name + ".csv")
        assert status == 0, (name, keep, error)
        assert found["culprit"] == culprit, (name, keep, found)
        assert found["ranks"][culprit]["action"] == action, (name, keep, found)
        if name == "1f1b" and keep > 90:
            for other in ("gpipe", "sleeper", *(f"m{m}" for m in (4, 6, 7, 9, 10, 12))):
                if other[0] == "m":
                    with open(other + ".csv", "w") as file:
                        subprocess.run([weft, "gen", "1F1B", "-p", "4", "-m", other[1:]], stdout=file, check=True)
                status, error, _ = ask("cut", other + ".csv")
                assert status in (1, 65), (other, keep, status, error)
    for rank in range(4):
        if os.path.exists(f"cut/rank{rank}.pkl"):
            os.remove(f"cut/rank{rank}.pkl")
END
}

# collective NAME GROUP STATE FRAMES: an entry of another group, as JSON.
collective() {
  printf '{"record_id": 9, "profiling_name": "nccl:%s", "pg_id": 7, "process_group": ["7", "%s"], "collective_seq_id": 3, "p2p_seq_id": 0, "state": "%s", "frames": [%s]}' "$@"
}

# The process group "pp" of the ranks 4 and 5, and `collective`'s of the ranks 1 and 5.
groups='"pg_config": {"": {"ranks": "[4, 5]"}, "7": {"ranks": "[1, 5]"}}'

@test "a collective of another group that a rank has not done is named, with its frame" {
  "$WEFT" gen 1F1B -p 2 -m 2 -o table.csv
  local torch='{"name": "wait", "filename": "/site/torch/distributed/fsdp.py", "line": 7}'
  local frame=$'{"name": "step", "filename": "/home/me/train.py", "line": 123}'
  mkdir job
  echo "{$groups, \"entries\": [$(entry 'send 0->1' 1 completed), $(entry 'send 0->1' 2 scheduled)]}" >job/nccl_trace_rank_4
  echo "{$groups, \"entries\": [$(entry 'recv 1<-0' 1 completed),
    $(collective all_reduce mesh_fsdp completed), $(collective _all_gather_base mesh_fsdp scheduled "$torch, $frame"),
    $(collective _reduce_scatter_base mesh_fsdp scheduled)]}" >job/nccl_trace_rank_5
  weft explain-hang job --program table.csv
  succeeds
  waits="rank 5: is in 1F0, in step 1; waits in nccl:_all_gather_base of group mesh_fsdp (train.py:123) for rank 1 (no dump)"
  [ "${lines[1]}" = "$waits" ]
  [[ $output == *$'\nverdict: cannot tell: the waits end where the dumps say no more: '"$waits"$'\nsuspects: rank 5 (nccl_trace_rank_5)\n'* ]]
  weft explain-hang job --program table.csv --json
  [ "$(jq -c '.ranks[1].collectives' <<<"$output")" = '[{"name":"nccl:_all_gather_base","group":"mesh_fsdp","ranks":"[1, 5]","file":"/home/me/train.py","line":123,"function":"step"}]' ]
  [ "$(jq -c '.ranks[0].collectives' <<<"$output")" = '[]' ]
  [ "$(jq -c '[.culprit, .suspects, [.ranks[].rank], [.ranks[].row]]' <<<"$output")" = '[null,[5],[4,5],[0,1]]' ]
  # One that a later one of its group proves to be done is not pending.
  echo "{$groups, \"entries\": [$(entry 'recv 1<-0' 1 completed), $(collective all_reduce dp scheduled), $(collective all_reduce dp completed)]}" >job/nccl_trace_rank_5
  weft explain-hang job --program table.csv
  [ "${lines[1]}" = "rank 5: is in 1F0, in step 1" ]
  [[ $output == *$'\nculprit: rank 5 (nccl_trace_rank_5)\n'* ]]
}

@test "what is no regular file is not read, and ends nothing" {
  cp -R "$dumps/sleeper" job
  mkfifo job/rank0.pipe
  mkdir job/rank1
  run --separate-stderr timeout 20 "$WEFT" explain-hang job --program job/program.csv
  succeeds
  [[ $output == *$'\nnot read: rank0.pipe: is a named pipe\nnot read: rank1: is a folder\n'* ]]
  [[ $output == *$'\nculprit: rank 2 (rank2.pkl)\n'* ]]
  weft explain-hang job --program job/program.csv --json
  [ "$(jq -c '[.unread[].file]' <<<"$output")" = '["rank0.pipe","rank1"]' ]
  rm job/*.pkl
  run --separate-stderr timeout 20 "$WEFT" explain-hang job --program job/program.csv
  fails 65 "rank0.pipe: is a named pipe"
}

# merge JOB FOLDER...: one job of a pipeline per folder. Stage s of pipeline d is rank s * DP + d.
merge() {
  python3 - "$dumps" "$@" <<'END'
import os, pickle, sys

source, job, *folders = sys.argv[1:]
os.makedirs(job)
for d, folder in enumerate(folders):
    stages = sorted(name for name in os.listdir(f"{source}/{folder}") if name.endswith(".pkl"))
    for s, name in enumerate(stages):
        with open(f"{source}/{folder}/{name}", "rb") as file:
            dump = pickle.load(file)
        ranks = [k * len(folders) + d for k in range(len(stages))]
        world = list(range(len(stages) * len(folders)))
        dump["pg_config"] = {
            "0": {"name": "0", "desc": "default_pg", "ranks": str(world)},
            str(d + 1): {"name": str(d + 1), "desc": "mesh_pp", "ranks": str(ranks)},
        }
        dump["entries"] = [dict(k, process_group=(str(d + 1), "mesh_pp")) for k in dump["entries"]]
        with open(f"{job}/nccl_trace_rank_{ranks[s]}", "wb") as file:
            pickle.dump(dump, file, protocol=2)
END
}

@test "a job of several pipelines: ranks and files of the job" {
  merge job sleeper sleeper
  for rank in 1 3 5 7; do
    rm job/nccl_trace_rank_$rank
  done
  weft explain-hang job --program "$dumps/sleeper/program.csv"
  succeeds # four ranks that are those of one pipeline
  [[ $output == *$'\nculprit: rank 4 (nccl_trace_rank_4)\n'* ]]
  rm -r job
  merge job gpipe gpipe
  "$WEFT" gen GPipe -p 3 -m 6 -o gpipe.csv
  weft explain-hang job --program gpipe.csv
  succeeds
  [ "${lines[0]}" = "pipeline 0:" ]
  [ "${lines[1]}" = "rank 0 (nccl_trace_rank_0): waits in 0RECV_B0 for rank 2, in step 3" ]
  [ "${lines[5]}" = "rank 1 (nccl_trace_rank_1): waits in 0RECV_B0 for rank 3, in step 3" ]
  [[ $output == *$'\nverdict: cannot tell: the waits end at several ranks, or come back to them: rank 2 (nccl_trace_rank_2): is in 1F3, in step 3; rank 3 (nccl_trace_rank_3): is in 1F3, in step 3\nsuspects: rank 2 (nccl_trace_rank_2), rank 3 (nccl_trace_rank_3)\n'* ]]
  rm job/nccl_trace_rank_2
  weft explain-hang job --program gpipe.csv --json
  succeeds
  [ "$(jq -c '[.culprit, .suspects, .ranks[4].file, .ranks[4].peer]' <<<"$output")" = '[3,[],"nccl_trace_rank_3",null]' ]
  [ "$(jq -c '[.ranks[] | [.rank, .pipeline, .row]]' <<<"$output")" = '[[0,0,0],[2,0,1],[4,0,2],[1,1,0],[3,1,1],[5,1,2]]' ]
  # Of another number of ranks than the program.
  weft explain-hang job --program "$dumps/sleeper/program.csv"
  fails 1 "the dumps name 6 ranks, up to rank 5; the program has 4" "that each pipeline"
}

@test "a recorded job of two pipelines: through the collectives to the rank that sleeps" {
  for folder in fsdp fsdp-item; do
    weft explain-hang "$dumps/$folder" --program "$dumps/$folder/program.csv"
    succeeds
    [[ $output == *$'\nverdict: rank 3 (nccl_trace_rank_3): is in 1F1, in step 3; 3 of 4 ranks wait\nculprit: rank 3 (nccl_trace_rank_3)\n'* ]]
  done
  [ "${lines[1]}" = "rank 0 (nccl_trace_rank_0): is in 2F1, in step 3; waits in nccl:all_gather of group mesh_dp (train.py:22) for rank 1" ]
  "$WEFT" gen GPipe -p 2 -m 4 -o wrong.csv
  weft explain-hang "$dumps/fsdp" --program wrong.csv
  fails 1 "nccl_trace_rank_0: the program contradicts entry 42, where rank 0 sends to rank 2: that is 0SEND_F1 of step 2 by the program"
}

@test "a rank without a dump is no culprit" {
  cp -R "$dumps/skewed" job
  rm job/rank1.pkl
  weft explain-hang job --program job/program.csv
  succeeds
  [[ $output == *$'\nverdict: cannot tell: the waits end where the dumps say no more: rank 1: there is no dump of it\nsuspects: rank 1\n'* ]]
  rm job/rank0.pkl
  cp "$dumps/skewed/rank1.pkl" job
  weft explain-hang job --program job/program.csv
  [[ $output == *$'\nverdict: cannot tell: no rank waits for another, but dumps are missing: rank 0: there is no dump of it\n'* ]]
}

@test "dumps of different times contradict each other" {
  cp -R "$dumps/sleeper" job
  python3 - <<'END'
import pickle

with open("job/rank3.pkl", "rb") as file:
    dump = pickle.load(file)
dump["entries"] = dump["entries"][:-250]
with open("job/rank3.pkl", "wb") as file:
    pickle.dump(dump, file, protocol=2)
del dump["pg_status"]
with open("early.pkl", "wb") as file:
    pickle.dump(dump, file, protocol=2)
END
  weft explain-hang job --program job/program.csv --json
  succeeds
  [ "$(jq -c '[.culprit, .unread[].message]' <<<"$output")" = '[2,"rank3.pkl: its last entries are lost"]' ]
  mv early.pkl job/rank3.pkl
  weft explain-hang job --program job/program.csv --json
  succeeds
  [ "$(jq -r '.unread[0].message' <<<"$output")" = "rank0.pkl: contradicts rank3.pkl: one has done what the other has not started" ]
  [ "$(jq -c '.culprit == null or .culprit == 2' <<<"$output")" = true ]
}

@test "1,024 dumps: one command, with a progress line on a terminal" {
  "$WEFT" gen 1F1B -p 4 -m 2 -o table.csv
  python3 - <<'END'
import json, os

os.mkdir("job")
for rank in range(1024):
    stage, replica = divmod(rank, 256)
    entries = [(f"recv {stage}<-{stage - 1}", "completed" if stage < 2 else "scheduled")] * (stage > 0)
    sends = "completed" if stage == 0 else "scheduled"
    entries += [(f"send {stage}->{stage + 1}", sends)] * (stage < 3 and (stage, replica) != (1, 77))
    if replica != 77 and stage > 0:
        entries = [(name, "completed") for name, _ in entries]
    entries = [
        {"record_id": k, "p2p_seq_id": k + 1, "process_group": [str(replica), "mesh_pp"],
         "profiling_name": "nccl:" + name, "state": state}
        for k, (name, state) in enumerate(entries)
    ]
    config = {str(replica): {"ranks": str([256 * s + replica for s in range(4)])}}
    with open(f"job/nccl_trace_rank_{rank}", "w") as file:
        json.dump({"pg_config": config, "entries": entries}, file)
END
  weft explain-hang job --program table.csv
  succeeds
  [[ $output == *$'\nculprit: rank 333 (nccl_trace_rank_333)\n'* ]]
  if script -qec true /dev/null >/dev/null 2>&1; then
    TERM=xterm run -0 script -qec "'$WEFT' explain-hang job --program table.csv -o out.txt" /dev/null
    [[ $output == *" %  dump "*" of 1024"* ]]
  fi
}

@test "a dump that ends too early counts as missing, and is named" {
  cp -R "$dumps/sleeper" job
  truncate -s 1000 job/rank0.pkl
  weft explain-hang job --program job/program.csv
  succeeds
  [[ $output == *"not read: rank0.pkl: byte "* ]]
  [[ $output == *$'\nculprit: rank 2 (rank2.pkl)\n'* ]]
  for file in job/rank?.pkl; do
    echo hello >"$file"
  done
  weft explain-hang job --program job/program.csv
  [ "$status" -eq 65 ]
  [[ $stderr == *"rank0.pkl: byte 0: this is no pickle"*"hint: "* ]]
}

@test "a pickle that calls code is refused" {
  mkdir job
  printf '\200\002cos\nsystem\n(X\005\000\000\000touchtR.' >job/rank0.pkl
  weft explain-hang job --program "$dumps/skewed/program.csv"
  [ "$status" -eq 65 ]
  [[ $stderr == *"byte 2: found opcode 0x63, which makes an object or calls code"* ]]
}

@test "what is missing or does not fit is said" {
  weft explain-hang "$dumps/sleeper"
  [ "$status" -eq 2 ]
  [[ $stderr == *"hint: add --program FILE"* ]]
  weft explain-hang "$dumps/sleeper/rank0.pkl" --program "$dumps/sleeper/program.csv"
  [ "$status" -eq 2 ]
  [[ $stderr == *"hint: give the folder"* ]]
  mkdir weft-hang.json
  weft explain-hang --program "$dumps/sleeper/program.csv" </dev/null
  [ "$status" -eq 66 ]
  [[ $stderr == *"'weft-hang.json' has no file with a number"* ]]
  mkdir empty
  weft explain-hang empty --program "$dumps/sleeper/program.csv"
  [ "$status" -eq 66 ]
  [[ $stderr == *"no file with a number at the end of its name"* ]]
  weft explain-hang "$dumps/sleeper" --program "$dumps/skewed/program.csv"
  [ "$status" -eq 1 ]
  [[ $stderr == *"the program has 2"*"hint: "* ]]
}
