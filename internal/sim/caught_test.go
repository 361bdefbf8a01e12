//go:build broken

package sim_test

// known is a run that finds a violation.
type known struct {
	profile string
	seed    uint64
}

// caught are the guards that the simulation misses when they are left out, each with a run that does. The others are
// beyond it: they are of what it does not do, or of what it meets in none of some thousand runs. TestBrokenByTests in
// layer has a test for each of all.
var caught = map[string]known{
	"tail":             {"staged", 25},
	"index":            {"operated", 10},
	"random":           {"scarce", 2},
	"dedup":            {"remembered", 3},
	"dedup-sweep":      {"remembered", 31},
	"dedup-slack":      {"remembered", 1},
	"lease":            {"expiring", 1},
	"claim-lock":       {"operated", 1},
	"stale-lock":       {"operated", 11},
	"park-lock":        {"expiring", 10},
	"overdue-lock":     {"aging", 49},
	"token":            {"expiring", 1},
	"settle-lock":      {"expiring", 2},
	"exact-clear":      {"scarce", 175},
	"release-empty":    {"scarce", 9},
	"take-lock":        {"scarce", 27},
	"take-items":       {"scarce", 27},
	"take-exclude":     {"scarce", 27},
	"item-lock":        {"operated", 2},
	"take-out-exclude": {"operated", 6},
	"edit-exclude":     {"operated", 27},
	"free-empty":       {"operated", 13},
	"mark-group":       {"operated", 8},
	"force-lock":       {"operated", 30},
	"purge-lock":       {"operated", 63},
	"purge-exclude":    {"operated", 41},
	"keep-exclude":     {"repeated", 488},
	"age-exclude":      {"aging", 49},
	"redrive-exclude":  {"operated", 95},
	"letter":           {"operated", 8},
	"grant-request":    {"staged", 104},
	"grant-lock":       {"staged", 27},
	"grant-lease":      {"staged", 17},
	"receipt":          {"unknown", 1},
	"receipt-conflict": {"unknown", 3},
	"receipt-late":     {"unknown", 3},
	"receipt-fence":    {"unknown", 3},
	"receipt-life":     {"unknown", 15},
	"claim-receipt":    {"unknown", 1},
	"reload-token":     {"unknown", 8},
	"assign":           {"unknown", 1},
	"apart":            {"unknown", 108},
	"configure":        {"operated", 4},
	// By commits that seek conflicts.
	"dedup-item":       {"recalled", 19},
	"dedup-purge":      {"recalled", 52},
	"dedup-rename":     {"recalled", 14},
	"stale-empty":      {"emptied", 146},
	"mark-lock":        {"marked", 9},
	"early-lock":       {"skewed", 397},
	"retry-lock":       {"kept", 1},
	"purge-gap":        {"purged", 1},
	"state-lock":       {"stated", 1},
	"state-exclude":    {"stated", 1},
	"redrive-lock":     {"buried", 66},
	"request-clear":    {"granted", 4},
	"request-deadline": {"granted", 15},
	"withdraw-request": {"granted", 11},
	"withdraw-lock":    {"granted", 40},
	"sweep-request":    {"renewed", 2},
	"renew-request":    {"renewed", 1},
	"reload-exact":     {"uncertain", 19},
	"repeat":           {"twinned", 3},
	"repeat-twin":      {"twinned", 1},
	"repeat-back":      {"twinned", 1},
	"repeat-sweep":     {"hourly", 7},
	"receipt-trust":    {"hourly", 34},
	"pace-sweep":       {"paced", 27},
	"pace-exclude":     {"paced", 20},
	"pace-fresh":       {"paced", 28},
	"replay-end":       {"replayed", 43},
	"replay-cut":       {"replayed", 13},
	"drop":             {"doomed", 130},
	"sweep-turn":       {"tended", 3},
	"queue-pause":      {"tended", 1},
	"not-in-claim":     {"tended", 1},
}

// caughtAlone are runs in which porcupine finds by itself that a guard is missing, by what the callers were told. It
// finds no want of liveness, nothing of what is remembered for de-duplication, and no wrong body or state.
var caughtAlone = map[string]known{
	"index":        {"operated", 10},
	"lease":        {"expiring", 3},
	"claim-lock":   {"operated", 1},
	"token":        {"expiring", 1},
	"settle-lock":  {"expiring", 2},
	"park-lock":    {"expiring", 10},
	"exact-clear":  {"scarce", 175},
	"take-lock":    {"scarce", 27},
	"take-exclude": {"scarce", 27},
	"receipt":      {"unknown", 1},
}
