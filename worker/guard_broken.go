//go:build broken

package worker

import "fdbfifo/layer"

// lacks reports whether this process leaves a guard out.
func lacks(name string) bool { return layer.Lacks(name) }
