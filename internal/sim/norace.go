//go:build !race

package sim

// subscribersAtWork: there are subscribers, see race.go.
const subscribersAtWork = true
