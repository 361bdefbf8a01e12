package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Seeds are the recorded ones: 1 to Seeds.
const Seeds = 64

// Read returns the history of a seed recorded in dir, without the lines that say how it was recorded.
func Read(dir string, seed uint64) (string, error) {
	b, err := os.ReadFile(file(dir, seed))
	if err != nil {
		return "", fmt.Errorf("recorded history: %w", err)
	}
	s := string(b)
	for strings.HasPrefix(s, "#") {
		_, s, _ = strings.Cut(s, "\n")
	}
	return s, nil
}

// Write records the history of a seed in dir below a head, the lines that say how it was recorded.
func Write(dir string, seed uint64, head []string, history string) error {
	var b strings.Builder
	for _, line := range head {
		b.WriteString("# " + line + "\n")
	}
	b.WriteString(history)
	if err := os.WriteFile(file(dir, seed), []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("recording a history: %w", err)
	}
	return nil
}

func file(dir string, seed uint64) string { return filepath.Join(dir, fmt.Sprintf("%d.txt", seed)) }

// Compare returns nil if the histories are equal. Otherwise the error shows the first line that differs, and the
// earlier steps of the same transaction.
func Compare(got, want string) error {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		lineOf := func(lines []string) string {
			if i < len(lines) {
				return lines[i]
			}
			return "(the end)"
		}
		if lineOf(g) == lineOf(w) {
			continue
		}
		who, _, _ := strings.Cut(lineOf(w), " ")
		var before []string
		for _, line := range w[:i] {
			if strings.HasPrefix(line, who+" ") {
				before = append(before, line)
			}
		}
		const most = 25
		before = before[max(0, len(before)-most):]
		return fmt.Errorf("%w in line %d:\n got %s\nwant %s\nbefore:\n%s",
			ErrDiffers, i+1, lineOf(g), lineOf(w), strings.Join(before, "\n"))
	}
	return nil
}

// ErrDiffers is what Compare's error wraps.
var ErrDiffers = errors.New("the histories differ")
