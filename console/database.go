package console

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"fdbfifo/kv"
)

// Statuser is a database with a status of its own, as FoundationDB's status json. The adapter fdbkv is one.
type Statuser interface {
	Status(ctx context.Context) ([]byte, error)
}

// statusEvery is how old the status of a cluster may be, because the status costs the cluster much.
const statusEvery = 30 * time.Second

// statusRow is something that the cluster says of itself.
type statusRow struct {
	Path, Value, Means string
	Bad                bool
}

type databaseData struct {
	Took   time.Duration // of a transaction that asks for the read version
	Status bool          // the database can say more
	Rows   []statusRow
}

func (c *Console) databasePage(ctx context.Context, in input) (any, error) {
	if c.o.DB == nil {
		return nil, fmt.Errorf("%w: the console was given queues, and no database", errAsk)
	}
	took, _, err := c.cache.get(ctx, question{text: "db"}, c.o.Every, func() (any, error) {
		ctx, cancel := context.WithTimeout(c.ctx, readTimeout)
		defer cancel()
		begun := time.Now()
		_, err := kv.Run(ctx, c.o.DB, kv.TxOptions{Call: "status"}, func(tx kv.Tx, _ kv.Attempt) error {
			_, err := tx.ReadVersion().Wait(ctx)
			return err
		})
		return time.Since(begun), err
	})
	if err != nil {
		return nil, err
	}
	db, ok := c.o.DB.(Statuser)
	d := databaseData{Took: took.(time.Duration).Round(10 * time.Microsecond), Status: ok}
	if !ok || in.Get("status") == "" {
		return d, nil
	}
	rows, _, err := c.cache.get(ctx, question{text: "status"}, statusEvery, func() (any, error) {
		ctx, cancel := context.WithTimeout(c.ctx, readTimeout)
		defer cancel()
		document, err := db.Status(ctx)
		if err != nil {
			return nil, err
		}
		return statusRows(document)
	})
	if err != nil {
		return nil, err
	}
	d.Rows = rows.([]statusRow)
	return d, nil
}

// statusPaths are the figures of a status that the page shows. docs/incidents.md has those of several values.
var statusPaths = []struct {
	path, means string
	bad         func(v string) bool
}{
	{"client.database_status.available", "false: nothing works, everything waits", is("false")},
	{"cluster.database_lock_state.locked", "true: everything waits (1038), see restore and DR", is("true")},
	{"cluster.recovery_state.name", "each recovery makes the commits under way unknown ones", isNot("fully_recovered")},
	{"cluster.recovery_state.seconds_since_last_recovered",
		"a small number that stays small: it recovers again and again",
		below(60)},
	{"cluster.fault_tolerance.max_zone_failures_without_losing_data",
		"below what the redundancy mode promises: repair first", nil},
	{"cluster.fault_tolerance.max_zone_failures_without_losing_availability", "the same, for availability", nil},
	{"cluster.workload.transactions.committed.hz", "what gets done", nil},
	{"cluster.workload.transactions.conflicted.hz",
		"against what gets done: too many claimers for the ready groups", nil},
	{"cluster.qos.performance_limited_by.name",
		"other than workload: the cluster slows everyone down", isNot("workload")},
	{"cluster.qos.batch_performance_limited_by.name", "why a check stands still", nil},
	{"cluster.qos.released_transactions_per_second", "near the limit: saturated", nil},
	{"cluster.qos.transactions_per_second_limit", "the limit", nil},
	{"cluster.latency_probe.transaction_start_seconds",
		"a receive takes a start, two rounds of reads and a commit", above(0.1)},
	{"cluster.latency_probe.read_seconds", "a read", above(0.1)},
	{"cluster.latency_probe.commit_seconds", "a commit", above(0.5)},
	{"cluster.qos.worst_queue_bytes_storage_server", "growing: storage does not keep up with the writes", above(900e6)},
	{"cluster.qos.worst_queue_bytes_log_server", "the same, of the logs", above(1.5e9)},
}

func is(want string) func(string) bool    { return func(v string) bool { return v == want } }
func isNot(want string) func(string) bool { return func(v string) bool { return v != want } }

func above(limit float64) func(string) bool {
	return func(v string) bool {
		n, err := strconv.ParseFloat(v, 64)
		return err == nil && n > limit
	}
}

func below(limit float64) func(string) bool {
	return func(v string) bool {
		n, err := strconv.ParseFloat(v, 64)
		return err == nil && n < limit
	}
}

// statusRows returns the rows of a status. It leaves out values that the cluster does not have.
func statusRows(document []byte) ([]statusRow, error) {
	var status map[string]any
	if err := json.Unmarshal(document, &status); err != nil {
		return nil, fmt.Errorf("the status of the cluster cannot be read: %w", err)
	}
	var rows []statusRow
	for _, p := range statusPaths {
		v := any(status)
		for name := range strings.SplitSeq(p.path, ".") {
			at, _ := v.(map[string]any)
			v = at[name]
		}
		if v == nil {
			continue
		}
		text := fmt.Sprint(v)
		shown := text
		if n, ok := v.(float64); ok {
			text = strconv.FormatFloat(n, 'f', -1, 64)
			if shown = Commas(int64(n)); n != math.Trunc(n) {
				shown = strconv.FormatFloat(n, 'g', 4, 64)
			}
		}
		row := statusRow{Path: strings.TrimPrefix(p.path, "cluster."), Value: shown, Means: p.means}
		row.Bad = p.bad != nil && p.bad(text)
		rows = append(rows, row)
	}
	return rows, nil
}
