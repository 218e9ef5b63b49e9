#!/usr/bin/env bash
# Shows that buf breaking, as make lint runs it, refuses what must not change between releases: each change is made to a copy of
# the protos, and must be refused in these words. BUF is the buf to ask.
set -euo pipefail
cd "$(dirname "$0")/../.."
buf=${BUF:-$PWD/.bin/buf}
copy=$PWD/.bin/broken
file=berth/scheduling/v1/scheduling.proto

refuses() { # what is refused, the change, the words
  rm -rf "$copy" && mkdir -p "$copy" && cp -r buf.yaml proto "$copy"
  sed -i "$2" "$copy/proto/$file"
  (cd "$copy" && "$buf" build -o /dev/null) || { echo "breaking.sh: $1: the change does not compile"; exit 1; }
  if said=$(cd "$copy" && "$buf" breaking --against proto/baseline.binpb 2>&1); then
    echo "breaking.sh: $1: buf breaking does not refuse it"; exit 1
  fi
  case $said in *"$3"*) ;; *) echo "breaking.sh: $1: want \"$3\" in"; echo "$said"; exit 1 ;; esac
}
refuses 'another number of a field' 's/^  int32 page_size = 1;/  int32 page_size = 1001;/' 'Previously present field "1" with name "page_size" on message "ListPodsRequest" was deleted'
refuses 'another type of a field' 's/^  int32 page_size = 1;/  string page_size = 1;/' 'changed type from "int32" to "string"'
refuses 'another name of a field' 's/^  int32 page_size = 1;/  int32 size = 1;/' 'changed name from "page_size" to "size"'
refuses 'an RPC that is gone' 's/^  rpc GetMap(.*//' 'Previously present RPC "GetMap" on service "SchedulingService" was deleted'
rm -rf "$copy"
