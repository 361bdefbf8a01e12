//go:build race

package sim

// SubscribersAtWork says whether runs have subscribers. The race detector does not see what orders the goroutines of
// subscribers, which the scheduler wakes one at a time, and reports races of the simulation's own notes. What a handler
// of a program would race with, the tests of subscriptions in layer show.
const SubscribersAtWork = false
