#!/bin/sh
# Writes the cluster file that the environment holds, as FoundationDB's own image does, and becomes fdbfifo.
# Without FDB_CLUSTER_FILE_CONTENTS the file is taken as it is: mount the folder it is in.
set -eu
if [ -n "${FDB_CLUSTER_FILE_CONTENTS:-}" ]; then
	printf '%s\n' "$FDB_CLUSTER_FILE_CONTENTS" >"$FDB_CLUSTER_FILE"
fi
exec fdbfifo "$@"
