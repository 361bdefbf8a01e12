#!/bin/bash
# Makes the database on a new cluster and waits until it answers. On a cluster that has one this changes nothing:
# "configure new" refuses to touch a database that exists.
set -euo pipefail
: "${FDB_CLUSTER_FILE_CONTENTS:?}" "${FDB_CONFIGURATION:?}" "${FDB_CLUSTER_FILE:?}"
printf '%s\n' "$FDB_CLUSTER_FILE_CONTENTS" >"$FDB_CLUSTER_FILE"

for ((try = 1; try <= 30; try++)); do
	status=$(fdbcli --exec 'status minimal' --timeout 5 2>&1 || true)
	case $status in
	*"The database is available"*)
		echo "$status"
		exit 0
		;;
	esac
	fdbcli --exec "configure new $FDB_CONFIGURATION" --timeout 10 || true
	sleep 1
done
echo "the database did not become available: $status" >&2
exit 1
