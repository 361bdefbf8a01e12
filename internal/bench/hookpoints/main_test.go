package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain makes this binary one of the programs that are measured.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-live" {
		if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestUnobserved: the layer without hook points is made from the layer as it is, and one that has changed is no reason
// to measure the same program twice.
func TestUnobserved(t *testing.T) {
	_, err := unobserved("package layer")
	require.ErrorContains(t, err, "to be replaced")
	t.Chdir("../../..")
	list, err := overlay(t.TempDir())
	require.NoError(t, err)
	said, err := exec.Command("go", "build", "-overlay", list, "./layer").CombinedOutput()
	require.NoError(t, err, "%s", said)
}

// TestMeasure: the programs run in turn, and each figure is printed. The values mean nothing here.
func TestMeasure(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, measure(t.Context(), self, self, 2, "20", &out))
	for _, want := range []string{"hook_points", "all_hooks"} {
		var got struct {
			Name  string
			Value float64
		}
		line, err := out.ReadBytes('\n')
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(line, &got))
		require.Equal(t, want, got.Name)
		require.Positive(t, got.Value)
	}
}
