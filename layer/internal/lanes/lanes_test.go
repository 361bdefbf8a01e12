package lanes

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/rec"
)

// kinds has a queue of each kind.
var kinds = map[string]Settings{
	"plain":     {},
	"unordered": {Unordered: true},
	"in turn":   {PerItem: true},
	"whole": {Facets: []string{"state", "region"}, Views: []View{
		{Text: WholeView}, {Text: "region", Facets: []string{"region"}},
		{Text: "state,region", Facets: []string{"state", "region"}},
	}},
	"parts": {Facets: []string{"state"}, Views: []View{{Text: "state", Facets: []string{"state"}}}},
}

var headers = map[string]string{"state": "NEW", "region": "EU", "other": "x"}

func anyValue(string, string) error { return nil }

func TestNames(t *testing.T) {
	item := Item{Group: "A", Index: 7, Random: uuid.New()}
	for _, tt := range []struct {
		lane, group  string
		part, isHold bool
	}{
		{"A", "A", false, false},
		{"", "", false, false},
		{Name("A", Free), "A", true, false},
		{Name("", Free), "", true, false},
		{Name("A", string([]byte(Free))+rec.PackStrings([]string{"NEW"})), "A", true, false},
		{Hold(item), "A", true, true},
	} {
		group, where := Split(tt.lane)
		require.Equal(t, tt.group, group, "%q", tt.lane)
		require.Equal(t, tt.group, GroupOf(tt.lane))
		require.Equal(t, tt.lane, Name(group, where))
		require.Equal(t, tt.part, IsPart(tt.lane), "%q", tt.lane)
		require.Equal(t, tt.isHold, IsHold(tt.lane), "%q", tt.lane)
	}
	of, ok := HoldOf(Hold(item))
	require.True(t, ok)
	require.Equal(t, item, of)
	view, values := SplitWhere("")
	require.Zero(t, view)
	require.Empty(t, values)
}

// TestCheckLane: a plan accepts each lane of its items, and no lane of a template that none of its views has.
func TestCheckLane(t *testing.T) {
	item := Item{Group: "A", Index: 7, Random: uuid.New()}
	part := func(view int64, values ...string) string {
		return Name("A", string(tuple.AppendInt(nil, view))+rec.PackStrings(values))
	}
	foreign := []string{
		part(-23847), part(0, "NEW"), part(1), part(1, "NEW", "EU", "x"), part(3, "NEW"), part(77, "NEW"),
	}
	for name, settings := range kinds {
		p := New(settings)
		for _, lane := range append(p.LanesOf("A", p.Pack(headers)), "A") {
			require.NoError(t, p.CheckLane(lane), "%s: %q", name, lane)
		}
		for _, lane := range []string{Name("A", Free), Hold(item)} {
			err := p.CheckLane(lane)
			require.Equal(t, p.HasHolds() || p.IsPlain(), err == nil, "%s: %q: %v", name, lane, err)
		}
		for _, lane := range foreign {
			require.Equal(t, p.IsPlain(), p.CheckLane(lane) == nil, "%s: %q", name, lane)
		}
	}
}

// TestLanesOfAnItem: each kind of queue has the lanes of the design, and CountParts agrees with PartsOf.
func TestLanesOfAnItem(t *testing.T) {
	byRegion := Name("A", "\x15\x01"+rec.PackStrings([]string{"EU"}))
	byBoth := Name("A", "\x15\x02"+rec.PackStrings([]string{"NEW", "EU"}))
	byState := Name("A", "\x15\x01"+rec.PackStrings([]string{"NEW"}))
	for kind, want := range map[string][]string{
		"plain":     {"A"},
		"unordered": {"A", Name("A", Free)},
		"in turn":   {"A"},
		"whole":     {"A", byRegion, byBoth},
		"parts":     {byState},
	} {
		p := New(kinds[kind])
		facets := p.Pack(headers)
		require.Equal(t, want, p.LanesOf("A", facets), kind)
		require.Len(t, p.PartsOf("A", p.Pack(headers)), p.CountParts(), kind)
		for _, lane := range want {
			require.True(t, p.Intersect(lane, "A"), "%s %q", kind, lane)
			require.True(t, p.Intersect(lane, lane), "%s %q", kind, lane)
		}
	}
}

// TestTemplates: a template names exactly the facets of a view, and comes back from its lane.
func TestTemplates(t *testing.T) {
	for kind, s := range kinds {
		p := New(s)
		for _, v := range s.Views {
			var template map[string]string
			for _, facet := range v.Facets {
				if template == nil {
					template = map[string]string{}
				}
				template[facet] = headers[facet]
			}
			where, err := p.Where(template, anyValue)
			require.NoError(t, err, "%s %s", kind, v.Text)
			require.Equal(t, template, p.TemplateOf(Name("A", where)))
			require.Contains(t, p.LanesOf("A", p.Pack(headers)), Name("A", where))
		}
		for _, wrong := range []map[string]string{{}, {"other": "x"}, {"state": "NEW", "other": "x"}} {
			_, err := p.Where(wrong, anyValue)
			require.ErrorIs(t, err, ErrNoView, "%s %v", kind, wrong)
		}
		where, err := p.Where(nil, anyValue)
		require.Empty(t, where)
		require.Equal(t, kind == "parts", errors.Is(err, ErrNoView), kind)
		require.Nil(t, p.Unpack(""))
	}
	p := New(kinds["whole"])
	require.Equal(t, "*; region; state,region", p.Views())
	require.Equal(t, map[string]string{"state": "NEW", "region": "EU"}, p.Unpack(p.Pack(headers)))
	bad := errors.New("bad value")
	_, err := p.Where(map[string]string{"region": "EU"}, func(facet, value string) error {
		require.Equal(t, "region EU", facet+" "+value)
		return bad
	})
	require.ErrorIs(t, err, bad)
}

// TestExcluding: the locks that exclude a lane are those of the lanes that intersect it, and few others.
func TestExcluding(t *testing.T) {
	p := New(kinds["whole"])
	where := func(template map[string]string) string {
		packed, err := p.Where(template, anyValue)
		require.NoError(t, err)
		return packed
	}
	region, both := where(map[string]string{"region": "EU"}), where(headersOf("state", "region"))
	require.Equal(t, []Locks{{All: true}}, p.Excluding("A"))
	require.Equal(t, []Locks{{}, {Where: region}, {Where: "\x15\x02", Below: true}}, p.Excluding(Name("A", region)))
	require.Equal(t, []Locks{{}, {Where: both}, {Where: region}}, p.Excluding(Name("A", both)))
	require.True(t, p.Intersect(Name("A", region), Name("A", both)))
	other := where(map[string]string{"region": "US"})
	require.False(t, p.Intersect(Name("A", other), Name("A", both)))
	require.False(t, p.Intersect(Name("A", other), Name("A", region)))

	hold := Hold(Item{Group: "A", Index: 7, Random: uuid.New()})
	_, of := Split(hold)
	for _, kind := range []string{"unordered", "in turn"} {
		require.Equal(t, []Locks{{All: true}}, New(kinds[kind]).Excluding("A"), kind)
		require.Equal(t, []Locks{{}, {Where: of}}, New(kinds[kind]).Excluding(hold), kind)
	}
	require.Equal(t, []Locks{{}}, New(kinds["plain"]).Excluding("A"))
}

// TestOthers: the other lanes of a group have locks, or holds, as the kind of the queue has them.
func TestOthers(t *testing.T) {
	for kind, want := range map[string]struct {
		locks []Locks
		field string
	}{
		"plain":     {},
		"unordered": {[]Locks{{Holds: true}, {All: true}}, "Hold"},
		"in turn":   {[]Locks{{Holds: true}, {All: true}}, "Hold"},
		"whole":     {[]Locks{{All: true}}, "Where, too"},
		"parts":     {[]Locks{{All: true}}, "Where, too"},
	} {
		p := New(kinds[kind])
		require.Equal(t, want.locks, p.Others(), kind)
		claim, field := p.NamedBy()
		require.Equal(t, want.field, field, kind)
		require.Equal(t, want.field == "", claim == "", kind)
	}
}

func headersOf(names ...string) map[string]string {
	some := map[string]string{}
	for _, name := range names {
		some[name] = headers[name]
	}
	return some
}

func TestCountedViews(t *testing.T) {
	require.Equal(t,
		[]CountedView{{WholeView, 0}, {"region", 1}, {"state,region", 2}}, New(kinds["whole"]).CountedViews())
	require.Empty(t, New(kinds["plain"]).CountedViews())
	require.Empty(t, New(kinds["in turn"]).CountedViews())
	require.Empty(t, New(kinds["unordered"]).CountedViews())
}

// TestLeaving: an item leaves the parts that it is in, unless a claim of the item alone has taken it out.
func TestLeaving(t *testing.T) {
	hold := Hold(Item{Group: "A", Index: 7, Random: uuid.New()})
	for kind := range kinds {
		p := New(kinds[kind])
		facets := p.Pack(headers)
		of, parts := p.Leaving("A", facets)
		switch kind {
		case "plain", "in turn":
			require.Empty(t, of, kind)
			require.Empty(t, parts, kind)
		default:
			require.Equal(t, p.LanesOf("A", facets), of, kind)
			require.Equal(t, p.PartsOf("A", p.Pack(headers)), parts, kind)
		}
	}
	of, parts := New(kinds["unordered"]).Leaving(hold, "")
	require.Equal(t, []string{"A", Name("A", Free)}, of)
	require.Empty(t, parts, "the claim has taken the item out")
	of, parts = New(kinds["in turn"]).Leaving(hold, "")
	require.Empty(t, of)
	require.Empty(t, parts)
	of, parts = New(kinds["whole"]).Leaving("A", "")
	require.Empty(t, of, "the facets are not known")
	require.Empty(t, parts, "the facets are not known")
}

// TestCheckOneHolder: an option that goes with one holder for each group is refused where there may be several.
func TestCheckOneHolder(t *testing.T) {
	refused := errors.New("refused")
	for kind := range kinds {
		err := New(kinds[kind]).CheckOneHolder("Token", refused)
		require.Equal(t, kind != "plain", errors.Is(err, refused), kind)
	}
}

// TestCheckJoin: messages join their groups when they are due where each group is one lane.
func TestCheckJoin(t *testing.T) {
	refused := errors.New("refused")
	for kind := range kinds {
		err := New(kinds[kind]).CheckJoin(refused)
		require.Equal(t, kind != "plain" && kind != "in turn", errors.Is(err, refused), kind)
	}
}

// TestHints: a lane needs a hint if a receive can claim it.
func TestHints(t *testing.T) {
	part := Name("A", "\x15\x01"+rec.PackStrings([]string{"NEW"}))
	for kind := range kinds {
		p := New(kinds[kind])
		_, err := p.Where(nil, anyValue)
		require.Equal(t, err == nil, p.NeedsHint("A"), kind)
		require.True(t, p.NeedsHint(part), kind)
		require.Equal(t, kind != "plain" && kind != "in turn", p.KeepsHints(), kind)
		require.Equal(t, kind == "in turn", p.ClaimsItems(""), kind)
		require.Equal(t, kind == "unordered", p.ClaimsItems(Free), kind)
	}
}

// TestLocks: the locks that can have an item are those of its group, its parts and its hold.
func TestLocks(t *testing.T) {
	item := Item{Group: "A", Index: 7, Random: uuid.New()}
	for kind := range kinds {
		p := New(kinds[kind])
		facets, holds := p.Pack(headers), kind == "unordered" || kind == "in turn"
		over, others := p.LanesOver(item, facets)
		require.Equal(t, "A", over[0], kind)
		require.False(t, others, kind)
		if holds {
			require.Equal(t, []string{Hold(item)}, over[1:], kind)
		} else {
			require.ElementsMatch(t, p.PartsOf("A", p.Pack(headers)), over[1:], kind)
		}
		over, others = p.LanesOver(item, "")
		require.Equal(t, len(p.Facets()) > 0, others, "%s: the facets are not known", kind)
		require.Equal(t, "A", over[0], kind)
		looked, many := p.Looked("A")
		require.Equal(t, !holds, many, kind)
		require.Equal(t, p.Excluding("A"), looked, kind)
	}
	parts := New(kinds["parts"]).PartsOf("A", rec.PackStrings([]string{"NEW"}))
	_, where := Split(parts[0])
	require.Equal(t, []Locks{{}, {Where: where}}, New(kinds["parts"]).LocksOf("A", parts))
	require.Equal(t, []Locks{{All: true}}, New(kinds["unordered"]).LocksOf("A", nil))
	require.Equal(t, []Locks{{}}, New(kinds["plain"]).LocksOf("A", nil))
}

// TestClaimsOfItems: what a claim of a single item, and the free lane, mean in each kind of queue.
func TestClaimsOfItems(t *testing.T) {
	hold, free := Hold(Item{Group: "A", Index: 7, Random: uuid.New()}), Name("A", Free)
	type answers struct {
		sought, out, turn string
		unordered         bool
	}
	for kind, want := range map[string]answers{
		"unordered": {sought: Free, out: free, unordered: true},
		"in turn":   {sought: "", turn: "A"},
	} {
		p := New(kinds[kind])
		out, isOut := p.TakenOutOf(hold)
		turn, turns := p.TurnOf(hold)
		where, ok := p.WhereUnordered()
		require.Equal(t, want, answers{p.SoughtBy(hold), out, turn, ok}, kind)
		require.Equal(t, want.out != "", isOut, kind)
		require.Equal(t, want.turn != "", turns, kind)
		require.Equal(t, want.sought, where, kind)
		require.Equal(t, ok, p.DeliversAny(free), kind)
	}
	for kind := range kinds {
		p := New(kinds[kind])
		require.Equal(t, Free, p.SoughtBy(free), kind)
		require.Empty(t, p.SoughtBy("A"), kind)
		require.False(t, p.DeliversAny("A"), kind)
		require.False(t, p.JoinsAnywhere("A"), kind)
		require.Equal(t, kind == "unordered" || kind == "in turn", p.MeetsHolds("A"), kind)
		require.False(t, p.MeetsHolds(free), kind)
		lane, ok := p.HoldOn(Item{Group: "A", Index: 7})
		require.Equal(t, kind == "unordered" || kind == "in turn", ok, kind)
		require.Equal(t, ok, lane == Hold(Item{Group: "A", Index: 7}), kind)
		require.Equal(t, p.PartsOf("A", p.Pack(headers)), p.KnownParts("A", p.Pack(headers)), kind)
		require.Equal(t, kind == "unordered", len(p.KnownParts("A", "")) > 0, kind)
		_, out := p.TakenOutOf("A")
		require.False(t, out, kind)
		_, turns := p.TurnOf("A")
		require.False(t, turns, kind)
		for _, part := range p.PartsOf("A", p.Pack(headers)) {
			require.Equal(t, kind != "unordered", p.JoinsAnywhere(part), kind)
		}
	}
}

// TestMeeting: Meeting finds two lanes that meet if a comparison of all pairs does.
func TestMeeting(t *testing.T) {
	p := New(Settings{Facets: []string{"state", "region", "kind"}, Views: []View{
		{Text: WholeView}, {Text: "state", Facets: []string{"state"}}, {Text: "kind", Facets: []string{"kind"}},
		{Text: "state,region", Facets: []string{"state", "region"}},
		{Text: "region,kind", Facets: []string{"region", "kind"}},
	}})
	random := rand.New(rand.NewPCG(1, 1))
	met := map[bool]int{}
	for range 5000 {
		lanes := make(map[string]bool)
		for range random.IntN(6) {
			headers := make(map[string]string)
			for _, facet := range []string{"state", "region", "kind"} {
				headers[facet] = strconv.Itoa(random.IntN(8))
			}
			of := p.LanesOf("A", p.Pack(headers))
			if n := random.IntN(3*len(of)) + 1; n < len(of) {
				lanes[of[n]] = true
			} else if n == 3*len(of) {
				lanes["A"] = true
			} else {
				lanes[of[n%2+3]] = true
			}
		}
		all := slices.Sorted(maps.Keys(lanes))
		want := false
		for i, a := range all {
			want = want || slices.ContainsFunc(all[i+1:], func(b string) bool { return p.Intersect(a, b) })
		}
		a, b, ok := p.Meeting(all)
		require.Equal(t, want, ok, "%q", all)
		if met[ok]++; ok {
			require.True(t, p.Intersect(a, b), "%q %q", a, b)
			require.Less(t, slices.Index(all, a), slices.Index(all, b))
			require.Contains(t, all, a)
		}
	}
	require.Greater(t, met[true], 500)
	require.Greater(t, met[false], 500)
	_, _, ok := New(Settings{}).Meeting([]string{"A"})
	require.False(t, ok)
}

// TestMeetingIsLinear: twice the lanes take about twice the work, here counted in allocations.
func TestMeetingIsLinear(t *testing.T) {
	p := New(kinds["whole"])
	work := func(n int) float64 {
		var all []string
		for i := range n {
			headers := map[string]string{"state": "NEW", "region": strconv.Itoa(i)}
			all = append(all, p.LanesOf("A", p.Pack(headers))[1+i%2])
		}
		return testing.AllocsPerRun(1, func() {
			_, _, ok := p.Meeting(all)
			require.False(t, ok)
		})
	}
	require.Less(t, work(1600), 6*work(400))
}
