package fdbkv_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/apple/foundationdb/bindings/go/src/fdb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/kvtest/history"
)

var record = flag.Bool("record", false, "record the histories anew: see package history")

// histories is where the recorded histories are kept, for the engines that are tested without a cluster.
const histories = "../kv/kvtest/history/testdata"

// TestHistories: the cluster gives the recorded histories, or with -record, gives the same twice in a row.
func TestHistories(t *testing.T) {
	db := open(t)
	var head []string
	if *record {
		require.NoError(t, os.MkdirAll(histories, 0o755))
		head = recordedBy(t)
	}
	for seed := uint64(1); seed <= history.Seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			got := play(t, db, seed)
			if *record {
				require.NoError(t, history.Compare(play(t, db, seed), got), "a history that cannot be repeated")
				require.NoError(t, history.Write(histories, seed, head, got))
				return
			}
			want, err := history.Read(histories, seed)
			require.NoError(t, err)
			if err := history.Compare(got, want); err != nil {
				// A machine that stalls for five seconds makes transactions too old. A real difference persists.
				t.Logf("once more: %v", err)
				require.NoError(t, history.Compare(play(t, db, seed), want))
			}
		})
	}
}

func play(t *testing.T, db kv.DB, seed uint64) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	h, err := history.Play(ctx, db, seed)
	require.NoError(t, err)
	return h
}

// recordedBy says which cluster records, and how and when.
func recordedBy(t *testing.T) []string {
	t.Helper()
	db := ownHandle(t)
	var server, client, engine string
	// A cluster that has just started says so bit by bit.
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		server, client, engine = versions(t, db)
		require.NotContains(t, []string{server, client, engine}, "")
	}, time.Minute, time.Second)
	return []string{
		fmt.Sprintf("FoundationDB server %s (one process, storage engine %s), client %s, API version %d",
			server, engine, client, fdb.MustGetAPIVersion()),
		"recorded on " + time.Now().UTC().Format(time.DateOnly) + " with",
		"cd fdbkv && go run ./testcluster -- go test -run '^TestHistories$' -count 1 . -record",
	}
}

// versions asks the cluster for its versions and engine. A value that the cluster does not tell is empty.
func versions(t require.TestingT, db fdb.Database) (server, client, engine string) {
	raw, err := db.ReadTransact(func(tr fdb.ReadTransaction) (any, error) {
		return tr.Get(fdb.Key("\xff\xff/status/json")).Get()
	})
	require.NoError(t, err)
	var status struct {
		Cluster struct {
			Configuration struct {
				Engine string `json:"storage_engine"`
			}
			Processes map[string]struct{ Version string }
			Clients   struct {
				Versions []struct {
					Client string `json:"client_version"`
				} `json:"supported_versions"`
			}
		}
	}
	require.NoError(t, json.Unmarshal(raw.([]byte), &status))
	c := status.Cluster
	for _, p := range c.Processes {
		server = p.Version
	}
	for _, v := range c.Clients.Versions {
		client = v.Client
	}
	return server, client, c.Configuration.Engine
}
