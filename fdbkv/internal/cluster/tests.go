package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Tests runs a package's tests, run, on the cluster of FDB_CLUSTER_FILE, or else on one of its own, and returns the
// exit code for TestMain. run finds the variable set. Where there is no cluster and nothing to start one with, Tests
// prints a line that begins with SKIP and returns 0.
func Tests(run func() int) (code int) {
	if os.Getenv(FileVariable) != "" {
		return run()
	}
	c, err := Start(context.Background())
	switch {
	case errors.Is(err, ErrNoBinaries):
		fmt.Println(Skip)
		return 0
	case err != nil:
		fmt.Println(err)
		return 1
	}
	defer func() {
		if err := c.Stop(); err != nil {
			fmt.Println("stopping the cluster:", err)
			code = 1
		}
	}()
	if err := os.Setenv(FileVariable, c.File); err != nil {
		fmt.Println(err)
		return 1
	}
	return run()
}

// Skip is what to print where there is no cluster.
const Skip = "SKIP: FDB_CLUSTER_FILE is not set, and there are no fdbserver and fdbcli in FDB_BIN or on the PATH"
