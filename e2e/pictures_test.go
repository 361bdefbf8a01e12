package e2e

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// pictures makes the test write the pictures of the docs again, see make pictures.
var pictures = flag.Bool("pictures", false, "write the pictures of docs/pictures again")

// pictured are the pages of which docs/operations.md has pictures, each light and dark.
var pictured = []struct {
	name, page    string
	width, height int64 // height 0: the whole page
}{
	{"queue", "queue?q=orders", 1100, 0},
	{"group", "group?q=orders&g=customer-7", 1100, 0}, {"phone", "blocked?q=orders", 360, 760},
}

// maxPicture bounds a picture's bytes: a clone of the repository has them all.
const maxPicture = 100 << 10

// TestPictures takes the pictures of the docs, and keeps them with -pictures; else they are only taken.
func TestPictures(t *testing.T) {
	w := newWorld(t)
	w.scene()
	require.NoError(t, os.MkdirAll("shots", 0o755))
	for _, p := range pictured {
		w.do(chromedp.EmulateViewport(p.width, cmp.Or(p.height, 600)))
		w.open(p.page)
		if p.name == "queue" {
			w.traffic()
		}
		for _, scheme := range []string{"light", "dark"} {
			w.do(colours(scheme))
			take := chromedp.FullScreenshot(100)
			if p.height > 0 {
				take = chromedp.CaptureScreenshot()
			}
			picture := palette(t, run(w, take))
			require.Less(t, len(picture), maxPicture, p.name)
			name := "console-" + p.name + "-" + scheme + ".png"
			require.NoError(t, os.WriteFile(filepath.Join("shots", name), picture, 0o644))
			if *pictures {
				require.NoError(t, os.WriteFile(filepath.Join("..", "docs", "pictures", name), picture, 0o644))
			}
		}
	}
	w.quiet()
}

// scene is a queue as an operator might meet it: most groups go on, some do not.
func (w *world) scene() {
	w.t.Helper()
	ctx := w.t.Context()
	w.behind.Store(int64(40 * time.Minute))
	defer w.behind.Store(0)
	_, _, err := w.q.Admin().Configure(ctx, func(c *layer.Config) { c.OnFailure = layer.HaltGroup })
	require.NoError(w.t, err)
	w.enqueue("customer-11", `{"order": 4711}`, "2", "3", "4")
	require.NoError(w.t, w.q.Nack(ctx, w.claim("customer-11"), layer.NackOptions{Reject: "account 11 is closed"}))
	w.enqueue("customer-9", "1", "2")
	by := layer.PauseOptions{By: "ann", Reason: "the customer has asked for it"}
	_, err = w.q.Admin().PauseGroup(ctx, "customer-9", by)
	require.NoError(w.t, err)
	for _, g := range []string{"customer-7", "customer-42", "customer-101"} {
		w.enqueue(g, `{"order": 1}`, "2", "3")
		w.fail(g, "timeout calling the bank", time.Hour)
	}
	w.enqueue("customer-3", "1", "2")
	w.claim("customer-3")
	for _, g := range []string{"customer-5", "customer-6"} {
		w.enqueue(g, "1")
		_, err = w.q.Admin().Skip(ctx, g, layer.SkipOptions{By: "ann", Reason: "no such account"})
		require.NoError(w.t, err)
	}
}

// traffic is what a chart shows.
func (w *world) traffic() {
	w.t.Helper()
	for i := range 12 {
		for j := range 2 + i%4 {
			w.enqueue("customer-50", strconv.Itoa(j))
		}
		require.NoError(w.t, w.q.Ack(w.t.Context(), w.claim("customer-50")))
		time.Sleep(200 * time.Millisecond)
	}
}

// palette stores a picture with 256 colours, which takes a third of the bytes: the most frequent ones, and for the
// others the nearest of those.
func palette(t *testing.T, picture []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(picture))
	require.NoError(t, err)
	b := full.Bounds()
	counts := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(full.At(x, y)).(color.RGBA) }
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	var all []color.RGBA
	for c := range counts {
		all = append(all, c)
	}
	slices.SortFunc(all, func(x, y color.RGBA) int {
		return cmp.Or(
			cmp.Compare(counts[y], counts[x]), cmp.Compare(x.R, y.R), cmp.Compare(x.G, y.G), cmp.Compare(x.B, y.B),
		)
	})
	var colours color.Palette
	for _, c := range all[:min(256, len(all))] {
		colours = append(colours, c)
	}
	nearest := map[color.RGBA]uint8{}
	for _, c := range all {
		nearest[c] = uint8(colours.Index(c))
	}
	small := image.NewPaletted(b, colours)
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			small.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	var out bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small))
	return out.Bytes()
}
