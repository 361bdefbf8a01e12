package layer_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// booking is a value with a nested group and a nested facet.
type booking struct {
	Flight struct{ Number, Region string }
	State  string
}

func bookings() layer.Form[booking] {
	return layer.Form[booking]{
		Group: func(b booking) string { return b.Flight.Number },
		Facets: map[string]func(booking) string{
			"state":  func(b booking) string { return b.State },
			"region": func(b booking) string { return b.Flight.Region },
		},
	}
}

// TestFormMessage: a value becomes a message with its group and facets, and a body that is the value again.
func TestFormMessage(t *testing.T) {
	f := bookings()
	var b booking
	b.Flight.Number, b.Flight.Region, b.State = "LH400", "EU", "NEW"
	m, err := f.Message(b)
	require.NoError(t, err)
	require.Equal(t, "LH400", m.Group)
	require.Equal(t, map[string]string{"state": "NEW", "region": "EU"}, m.Headers)
	require.Equal(t, layer.Template{"state": "NEW", "region": "EU"}, f.Template(b))
	again, err := f.Decode(m.Body)
	require.NoError(t, err)
	require.Equal(t, b, again)

	b.State = ""
	_, err = f.Message(b)
	require.ErrorIs(t, err, layer.ErrLimit)
	require.ErrorContains(t, err, `facet "state"`)

	plain, err := layer.Form[int]{}.Message(7)
	require.NoError(t, err)
	require.Equal(t, layer.Message{Body: []byte("7")}, plain)
	_, err = layer.Form[int]{Body: brokenCodec{}}.Message(7)
	require.ErrorIs(t, err, errBroken)
}

var errBroken = errors.New("broken")

type brokenCodec struct{}

func (brokenCodec) Encode(int) ([]byte, error) { return nil, errBroken }
func (brokenCodec) Decode([]byte) (int, error) { return 0, errBroken }

// TestFormCheck: the error for a form that does not fit the queue's facets names the fault and the allowed values.
func TestFormCheck(t *testing.T) {
	config := layer.Config{Facets: []string{"state", "region"}, Views: "state"}
	require.NoError(t, bookings().Check(config))
	require.NoError(t, layer.Form[int]{}.Check(layer.Config{}))
	state := func(b booking) string { return b.State }
	for name, c := range map[string]struct {
		change func(f layer.Form[booking])
		says   string
	}{
		"unknown": {func(f layer.Form[booking]) { f.Facets["stage"] = state },
			`facet is "stage", allowed is: the queue's facets: state, region`},
		"missing":      {func(f layer.Form[booking]) { delete(f.Facets, "region") }, `without a function is region`},
		"no function":  {func(f layer.Form[booking]) { f.Facets["region"] = nil }, `without a function is region`},
		"empty":        {func(f layer.Form[booking]) { f.Facets[""] = state }, `facet is "", allowed is: a name`},
		"reserved":     {func(f layer.Form[booking]) { f.Facets["*"] = state }, `facet is "*", allowed is: a name`},
		"separator":    {func(f layer.Form[booking]) { f.Facets["a=b"] = state }, `facet is "a=b"`},
		"too long":     {func(f layer.Form[booking]) { f.Facets[strings.Repeat("x", 65)] = state }, "1 to 64"},
		"invalid UTF8": {func(f layer.Form[booking]) { f.Facets["\xff"] = state }, "UTF-8"},
		"too many": {func(f layer.Form[booking]) {
			for _, name := range []string{"a", "b", "c"} {
				f.Facets[name] = state
			}
		}, "5"},
	} {
		t.Run(name, func(t *testing.T) {
			f := bookings()
			c.change(f)
			require.ErrorContains(t, f.Check(config), c.says)
		})
	}
	require.ErrorContains(t, bookings().Check(layer.Config{}), "the queue's facets: none")
}
