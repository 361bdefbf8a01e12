package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHookPoints: both programs are built from the layer as it is, the second without code for hooks, and run; what they
// measure here means nothing. A layer that has changed is no reason to measure the same program twice.
func TestHookPoints(t *testing.T) {
	_, err := unobserved("package layer")
	require.Error(t, err)
	if testing.Short() {
		t.Skip("builds the layer twice")
	}
	t.Chdir("../../..")
	whole, without, err := build(t.Context(), t.TempDir())
	require.NoError(t, err)
	for path, has := range map[string]bool{whole: true, without: false} {
		symbols, err := exec.Command("go", "tool", "nm", path).Output()
		require.NoError(t, err)
		require.Equal(t, has, bytes.Contains(symbols, []byte("observeHooks")), path)
	}
	var out bytes.Buffer
	require.NoError(t, measure(t.Context(), whole, without, 1, "20", &out))
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
