package layer

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// cut shortens a text to maxErrorText bytes and makes the text valid UTF-8.
func cut(text string) string {
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func millis(t time.Time) int64 { return t.UnixMilli() }

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms) }

func timeWords(ms int64) string { return fromMillis(ms).UTC().Format("2006-01-02 15:04:05.000 UTC") }

func countWords(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// durationText is d.String() without trailing zeros: "2m" for "2m0s".
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func nameOf[T ~int](v T, names []string) string {
	if v < 0 || int(v) >= len(names) {
		return strconv.Itoa(int(v))
	}
	return names[v]
}
