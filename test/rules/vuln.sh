#!/usr/bin/env bash
# Shows that govulncheck, as make vuln runs it, reads the database it is given and tells what Berth calls from what it does
# not: it is shown a made-up database in which a function that Berth calls has a flaw, and another that nobody calls.
# GOVULNCHECK is the one to ask.
set -euo pipefail
cd "$(dirname "$0")/../.."
db=$(mktemp -d)
trap 'rm -rf "$db"' EXIT
mkdir -p "$db/index" "$db/ID"
entry() { # id, module, package, symbol
  cat > "$db/ID/$1.json" <<OSV
{"schema_version": "1.3.1", "id": "$1", "modified": "2026-01-01T00:00:00Z", "published": "2026-01-01T00:00:00Z",
 "summary": "made up", "details": "made up", "affected": [{"package": {"name": "$2", "ecosystem": "Go"},
  "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
  "ecosystem_specific": {"imports": [{"path": "$3", "symbols": ["$4"]}]}}],
 "database_specific": {"url": "https://pkg.go.dev/vuln/$1"}}
OSV
}
called=GO-9999-0001 uncalled=GO-9999-0002
entry $called google.golang.org/grpc google.golang.org/grpc/status Errorf
entry $uncalled google.golang.org/grpc google.golang.org/grpc/xds NewGRPCServer
echo '{"modified": "2026-01-01T00:00:00Z"}' > "$db/index/db.json"
cat > "$db/index/modules.json" <<MODULES
[{"path": "google.golang.org/grpc", "vulns": [{"id": "$called", "modified": "2026-01-01T00:00:00Z"}, {"id": "$uncalled", "modified": "2026-01-01T00:00:00Z"}]}]
MODULES

said=$("$GOVULNCHECK" -db "file://$db" ./internal/access 2>&1) && { echo "vuln.sh: govulncheck says that all is well:"; echo "$said"; exit 1; }
case $said in
  *"$uncalled"*) echo "vuln.sh: govulncheck tells of what nobody calls:"; echo "$said"; exit 1 ;;
  *"$called"*) ;;
  *) echo "vuln.sh: govulncheck does not find what is called:"; echo "$said"; exit 1 ;;
esac
