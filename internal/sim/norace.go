//go:build !race

package sim

// SubscribersAtWork says whether runs have subscribers, see race.go.
const SubscribersAtWork = true
