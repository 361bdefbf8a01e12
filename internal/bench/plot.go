package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"

	"fdbfifo/layer"
)

// Series is what claimers of one path did.
type Series struct {
	Name   string
	Points []Point
}

// Sweep measures each path of a receive with each number of claimers, on plenty of ready groups.
func Sweep(ctx context.Context, env Env, s Sizes) ([]Series, error) {
	var all []Series
	for _, p := range []struct {
		name string
		path layer.Path
	}{{"direct only", layer.Direct}, {"staged only", layer.Staged}, {"adaptive", layer.Adaptive}} {
		points, err := sweep(ctx, env, s, s.ReadyGroups, p.path)
		if err != nil {
			return nil, fmt.Errorf("bench: sweep: %s: %w", p.name, err)
		}
		all = append(all, Series{p.name, points})
	}
	return all, nil
}

// WriteMarkdown writes the series as a table.
func WriteMarkdown(w io.Writer, all []Series) error {
	var b strings.Builder
	b.WriteString("| claimers |")
	for _, s := range all {
		fmt.Fprintf(&b, " %s: items/s | conflicts a claim |", s.Name)
	}
	b.WriteString("\n|--:|" + strings.Repeat("--:|--:|", len(all)) + "\n")
	for i, p := range all[0].Points {
		fmt.Fprintf(&b, "| %d |", p.Claimers)
		for _, s := range all {
			fmt.Fprintf(&b, " %.0f | %.3f |", s.Points[i].PerSecond, s.Points[i].Conflicts)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// The drawing is by hand: two small line charts are less than any plotting library brings with it.
const (
	chartWidth, chartHeight = 420, 260
	marginLeft, marginTop   = 70, 60
	chartGap                = 80
)

var seriesColours = [...]string{"#d55e00", "#0072b2", "#009e73"} // told apart also by the colour-blind

// WriteSVG draws throughput and conflicts against the number of claimers, which is on a scale of powers of two.
func WriteSVG(w io.Writer, all []Series, caption string) error {
	var b strings.Builder
	width, height := 2*marginLeft+2*chartWidth+chartGap, marginTop+chartHeight+90
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	drawChart(&b, marginLeft, "items a second", all, func(p Point) float64 { return p.PerSecond })
	drawChart(&b, marginLeft+chartWidth+chartGap, "conflicts per claim", all, func(p Point) float64 { return p.Conflicts })
	for i, s := range all {
		x := marginLeft + 130*i
		fmt.Fprintf(&b, `<rect x="%d" y="14" width="14" height="4" fill="%s"/><text x="%d" y="20">%s</text>`+"\n", x, seriesColours[i], x+20, s.Name)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#555">%s</text>`+"\n</svg>\n", marginLeft, height-15, escapeXML(caption))
	_, err := io.WriteString(w, b.String())
	return err
}

func drawChart(b *strings.Builder, left int, title string, all []Series, value func(Point) float64) {
	top, most, last := 0.0, 0.0, 1
	for _, s := range all {
		for _, p := range s.Points {
			most, last = max(most, value(p)), max(last, p.Claimers)
		}
	}
	top = roundUp(most)
	x := func(n int) float64 {
		return float64(left) + chartWidth*math.Log2(float64(n))/max(1, math.Log2(float64(last)))
	}
	y := func(v float64) float64 { return marginTop + chartHeight*(1-v/top) }
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, marginTop-14, title)
	for i := range 5 {
		v := top * float64(i) / 4
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.4g</text>`+"\n",
			left, y(v), left+chartWidth, y(v), left-6, y(v)+4, v)
	}
	for _, p := range all[0].Points {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(p.Claimers), marginTop+chartHeight+18, p.Claimers)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">claimers, a handle each</text>`+"\n", left+chartWidth/2, marginTop+chartHeight+38)
	for i, s := range all {
		var line []string
		for _, p := range s.Points {
			line = append(line, fmt.Sprintf("%.1f,%.1f", x(p.Claimers), y(value(p))))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(p.Claimers), y(value(p)), seriesColours[i])
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(line, " "), seriesColours[i])
	}
}

// roundUp is the next number of the form 1, 2, 4 or 8 times a power of ten: a scale with even quarters.
func roundUp(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 4, 8} {
		if v <= f*unit {
			return f * unit
		}
	}
	return 10 * unit
}

func escapeXML(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}
