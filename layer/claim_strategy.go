package layer

// Strategy says how a receive spreads over the ready groups.
type Strategy int

// The strategies. With groups A of 5 items, B of 3 and C of 2, in that order of age, a receive of 10 delivers:
const (
	// FillGroup takes as much as possible from the oldest group, then from the next: A1–A5 B1–B3 C1 C2.
	FillGroup Strategy = iota
	// Layers takes the first item of each group, then the second of each: A1 B1 C1 A2 B2 C2 A3 B3 A4 A5.
	Layers
	// Heads takes the first item of each group: A1 B1 C1.
	Heads
)

// InOrder returns the items of a receive in the order in which the strategy delivers the items. Within a group the
// order is always the group's order.
func (s Strategy) InOrder(claims []*Claim) []Item {
	var items []Item
	if s != Layers {
		for _, c := range claims {
			items = append(items, c.Items...)
		}
		return items
	}
	for layer, more := 0, true; more; layer++ {
		more = false
		for _, c := range claims {
			if layer < len(c.Items) {
				items = append(items, c.Items[layer])
				more = true
			}
		}
	}
	return items
}

// layers says how many items of each group a receive of max items takes layer by layer. have is the number of items of
// each group. Example: have 5 3 2, max 4: 2 1 1. The receive ends before the first item that does not fit; item is its
// place in its group.
func layers(have []int, max int, fits func(group, item int) bool) []int {
	take := make([]int, len(have))
	for left, more := max, true; more; {
		more = false
		for i := range have {
			if left == 0 || take[i] == have[i] {
				continue
			}
			if !fits(i, take[i]) {
				return take
			}
			take[i]++
			left--
			more = true
		}
	}
	return take
}
