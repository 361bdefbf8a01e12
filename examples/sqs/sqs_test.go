package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain makes this binary the command for the processes that a trial starts.
func TestMain(m *testing.M) {
	if os.Getenv(childMark) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestTrial: a server, an API and a worker of each stage are killed, and each order was packed and shipped once, in its
// customer's order.
func TestTrial(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "fdbfifo")
	build := exec.Command("go", "build", "-o", binary, "./cmd/fdbfifo")
	build.Dir = "../.."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	var line bytes.Buffer
	err = command(t.Context(), []string{
		"-orders", "120", "-customers", "8", "-kill", "server,pack-1,ship-1,shop", "-server", binary, "-json",
	}, strings.NewReader(""), &line, os.Stderr)
	require.NoError(t, err)
	if strings.HasPrefix(line.String(), "SKIP") {
		t.Skip(line.String())
	}
	var r result
	require.NoError(t, json.Unmarshal(line.Bytes(), &r))
	require.Equal(t, proof{Orders: 120, Customers: 8, Again: r.Again}, r.proof)
	require.Equal(t, 4, r.Killed)
}

// TestShopRefuses: the order service refuses an order without a number. All such orders of a customer would have the
// same deduplication id, and the queue would drop each of them except the first.
func TestShopRefuses(t *testing.T) {
	folder := cmp.Or(os.Getenv("SQS_NODE"), "../../bin/node")
	if missing := lacking(t.Context(), folder); missing != "" {
		t.Skip(missing)
	}
	folder, err := filepath.Abs(folder)
	require.NoError(t, err)
	shop := &process{
		name: "shop", says: "listening ",
		args: []string{"node", "shop.mjs", "http://127.0.0.1:1", "orders", folder, "0"},
	}
	port, err := shop.start()
	require.NoError(t, err)
	defer shop.kill()
	for _, order := range []string{
		`{"customer":"ann"}`, `{"customer":"ann","number":null}`, `{"customer":"ann","number":0}`, `{"number":1}`,
		`{"customer":"ann","number":"1-2"}`,
	} {
		answer, err := http.Post("http://127.0.0.1:"+port+"/orders", "application/json", strings.NewReader(order))
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusBadRequest, answer.StatusCode, order)
	}
}

// A canary: the proof fails on each kind of broken promise.
func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		book string
		want proof
	}{
		"sound":        {"1 a\n2 a\n3 b\n", proof{}},
		"again":        {"1 a\n2 a\n1 b again\n2 b again\n3 b\n", proof{Again: 2}},
		"missing":      {"1 a\n3 b\n", proof{Missing: 1}},
		"no book":      {"", proof{Missing: 3}},
		"doubled":      {"1 a\n2 a\n2 b\n3 b\n", proof{Doubled: 1}},
		"out of order": {"2 a\n1 a\n3 a\n", proof{OutOfOrder: 1}},
	} {
		lines, err := parse(c.book)
		require.NoError(t, err, name)
		var p proof
		p.judge(lines, 3)
		require.Equal(t, c.want, p, name)
		require.Equal(t, c.want.Missing+c.want.Doubled+c.want.OutOfOrder > 0, p.err(1) != nil, name)
	}
	_, err := parse("one a\n")
	require.Error(t, err)
}

// TestAgainIsBounded: the proof fails if more messages come again than the killed processes had in flight. Example: the
// server delivers each message twice, and no process is killed.
func TestAgainIsBounded(t *testing.T) {
	lines, err := parse("1 a\n1 b again\n2 a\n2 b again\n3 a\n3 b again\n")
	require.NoError(t, err)
	var p proof
	p.judge(lines, 3)
	require.Equal(t, proof{Again: 3}, p)
	require.Error(t, p.err(0))
	require.NoError(t, p.err(1))
	require.NoError(t, proof{Again: inFlight}.err(1))
	require.Error(t, proof{Again: inFlight + 1}.err(1))
}

// TestCommands: what a user mistypes is said.
func TestCommands(t *testing.T) {
	for _, args := range [][]string{{"sell"}, {"ship", "x"}, {"run", "-orders", "3"}, {"-kils"}} {
		require.Error(t, command(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard), args)
	}
}
