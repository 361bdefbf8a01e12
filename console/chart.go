package console

import (
	"fmt"
	"strings"
	"time"
)

// chart is lines over the last hour, drawn as SVG.
type chart struct {
	In, Out, Depth string // points of a polyline
	MaxRate        string
	MaxDepth       string
	Span           string
	Any            bool
}

// The size of a chart, in its own units.
const (
	chartWidth  = 600
	chartHeight = 100
)

// draw makes a chart of the samples that the console remembers.
func draw(h []sample) chart {
	if len(h) < 2 {
		return chart{}
	}
	begun, span := h[0].at, h[len(h)-1].at.Sub(h[0].at)
	if span <= 0 {
		return chart{}
	}
	at := func(t time.Time) float64 { return float64(t.Sub(begun)) / float64(span) * chartWidth }
	in, out, maxRate, maxDepth := make([]float64, len(h)), make([]float64, len(h)), 0.0, float64(h[0].depth)
	for i := 1; i < len(h); i++ {
		seconds := max(h[i].at.Sub(h[i-1].at).Seconds(), 0.001)
		in[i] = max(0, float64(h[i].enqueued-h[i-1].enqueued)/seconds)
		out[i] = max(0, float64(h[i].acked-h[i-1].acked)/seconds)
		maxRate, maxDepth = max(maxRate, in[i], out[i]), max(maxDepth, float64(h[i].depth))
	}
	in[0], out[0] = in[1], out[1]
	line := func(value func(i int) float64, top float64) string {
		var b strings.Builder
		for i := range h {
			fmt.Fprintf(&b, "%.1f,%.1f ", at(h[i].at), chartHeight-value(i)/max(top, 1e-9)*(chartHeight-4)-2)
		}
		return strings.TrimSpace(b.String())
	}
	return chart{
		In:      line(func(i int) float64 { return in[i] }, maxRate),
		Out:     line(func(i int) float64 { return out[i] }, maxRate),
		Depth:   line(func(i int) float64 { return float64(h[i].depth) }, maxDepth),
		MaxRate: fmt.Sprintf("%.1f", maxRate), MaxDepth: Commas(int64(maxDepth)), Span: Short(span), Any: true,
	}
}

// rates returns the enqueued and acked messages a second in the newest samples.
func rates(h []sample) (in, out string) {
	if len(h) < 2 {
		return "", ""
	}
	last := h[len(h)-1]
	first := last
	for i := len(h) - 2; i >= 0 && last.at.Sub(h[i].at) <= time.Minute; i-- {
		first = h[i]
	}
	if first == last {
		first = h[len(h)-2]
	}
	seconds := max(last.at.Sub(first.at).Seconds(), 0.001)
	rate := func(n int64) string { return fmt.Sprintf("%.1f", max(0, float64(n)/seconds)) }
	return rate(last.enqueued - first.enqueued), rate(last.acked - first.acked)
}
