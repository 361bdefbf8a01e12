package worker

// The guards of the worker, by their names in package layer, whose list has all guards.
const (
	guardExtendApart = "extend-apart"
	guardTxBound     = "tx-bound"
)
