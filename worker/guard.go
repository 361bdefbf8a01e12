package worker

// The guards of the worker, by their names in layer/internal/guard, which has all guards.
const (
	guardExtendApart = "extend-apart"
	guardTxBound     = "tx-bound"
)
