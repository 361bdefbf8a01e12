//go:build broken

package mutants

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCaught: the test of each mutant passes without the mutant and fails with it.
func TestCaught(t *testing.T) {
	whole := make(map[string]bool)
	for _, m := range load(t) {
		if of := m.pkg + " " + m.test; !whole[of] {
			whole[of] = true
			t.Run("whole/"+m.name, func(t *testing.T) {
				t.Parallel()
				out, err := m.run(filepath.Join(t.TempDir(), "overlay.json"), nil)
				require.NoError(t, err, "%s", out)
				name, _, _ := strings.Cut(m.test, "/")
				require.Contains(t, out, "--- PASS: "+name)
			})
		}
		t.Run("mutant/"+m.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			replace := make(map[string]string, len(m.files))
			for n, file := range m.files {
				text, err := m.apply(file)
				require.NoError(t, err)
				at, err := filepath.Abs(filepath.Join(root, file))
				require.NoError(t, err)
				replace[at] = filepath.Join(dir, string(rune('a'+n))+".go")
				require.NoError(t, os.WriteFile(replace[at], []byte(text), 0o600))
			}
			out, err := m.run(filepath.Join(dir, "overlay.json"), replace)
			require.Error(t, err, "%s %s passes with the mutant", m.pkg, m.test)
			if !strings.Contains(out, "--- FAIL") {
				require.Contains(t, out, "panic", "%s", out) // it did run
			}
		})
	}
}

// run runs the mutant's test with files replaced.
func (m *mutant) run(overlay string, replace map[string]string) (string, error) {
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err == nil {
		err = os.WriteFile(overlay, text, 0o600)
	}
	if err != nil {
		return "", err
	}
	args := []string{"test", "-vet=off", "-count", "1", "-timeout", "3m", "-v", "-overlay", overlay, "-run"}
	parts := strings.Split(m.test, "/")
	for i := range parts {
		parts[i] = "^" + parts[i] + "$"
	}
	args = append(args, strings.Join(parts, "/"), m.pkg)
	test := exec.Command("go", append(args, m.flags...)...)
	test.Dir = root
	out, err := test.CombinedOutput()
	return string(out), err
}
