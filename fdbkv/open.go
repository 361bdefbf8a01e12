package fdbkv

import (
	"fmt"
	"sync"

	"github.com/apple/foundationdb/bindings/go/src/fdb"
)

// MinAPIVersion is the least API version that gives kv its meaning: options outlive OnError as TxOptions say, and
// versionstamped operations carry 4-byte offsets. The suite runs with 730.
const MinAPIVersion = 610

// opening guards the binding's map of open databases, which it does not lock itself.
var opening sync.Mutex

// Open opens the cluster that a cluster file names. With an empty clusterFile it looks where FoundationDB does: the
// environment's FDB_CLUSTER_FILE, fdb.cluster in the working directory, the system's default.
//
// The process must have selected an API version, else the error is ErrAPIVersion. A file that is missing is
// ErrNoClusterFile; one that cannot be read or understood is ErrClusterFile. Whether the cluster is there is not
// asked; see DB.Ping.
func Open(clusterFile string) (*DB, error) {
	if err := checkAPIVersion(); err != nil {
		return nil, fmt.Errorf("fdbkv: %w", err)
	}
	path := findClusterFile(clusterFile)
	if err := checkClusterFile(path); err != nil {
		return nil, fmt.Errorf("fdbkv: %w", err)
	}
	opening.Lock()
	defer opening.Unlock()
	db, err := fdb.OpenDatabase(path)
	if err != nil {
		return nil, fmt.Errorf("fdbkv: open %s: %w", path, converted(err))
	}
	return From(db), nil
}

func checkAPIVersion() error {
	if !fdb.IsAPIVersionSelected() {
		return fmt.Errorf("%w: none is selected; call fdb.MustAPIVersion(730) once, before anything else", ErrAPIVersion)
	}
	v, err := fdb.GetAPIVersion()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAPIVersion, err)
	}
	if v < MinAPIVersion {
		return fmt.Errorf("%w: %d is selected, at least %d is needed", ErrAPIVersion, v, MinAPIVersion)
	}
	return nil
}
