package embedded

// Options configure an engine. The zero value is right for production.
type Options struct {
	Clock Clock // nil = the wall clock

	// Seed makes the backoff jitter repeatable; 0 = seeded at random.
	Seed uint64

	// MaxWatches bounds the watches outstanding at a time; 0 = 10,000, FoundationDB's default.
	MaxWatches int

	// Exclusive keeps other processes, and other DBs of this one, out of a folder: ErrLocked, on either side. A
	// database on disk in a bubble of testing/synctest needs it too: time stands still there while a goroutine is at a
	// socket.
	Exclusive bool

	// ReadOnly opens a folder without a change to it, for example a copy without write permission, or a folder on a
	// read-only file system. Reads see the last commit. A commit that writes ends with 2023 and ErrReadOnly. A DB that
	// writes and one with ReadOnly exclude each other: the second to open gets ErrLocked. For a folder without a
	// database the error is fs.ErrNotExist. OpenMemory ignores it.
	ReadOnly bool

	Hooks Hooks
}

// Hooks let a test cause events that a wrapper around the engine cannot cause. All are optional. One goroutine at a
// time calls them. They must not call the engine.
type Hooks struct {
	// VersionGap returns how many versions to skip before a commit group, as a recovery of a cluster does.
	// A gap of five million ends every open transaction with 1007.
	VersionGap func() int64

	// BeforeGroup is called with the number of commits in a group, before any of them is checked.
	BeforeGroup func(commits int)

	// Apply is called before a commit group is written. An error takes the place of the write and is treated
	// as a failure of the store: the group ends with 1021, and every later read and commit with 1510.
	Apply func() error

	// Synced is called on disk when a group was written, with the store's own error. The error that it returns replaces
	// the store's. It stands for a sync that failed although the data may have reached the disk.
	Synced func(err error) error

	// HoldWatches returns true to leave due watches unfired until the next commit group: watches may be late.
	HoldWatches func() bool
}

const defaultMaxWatches = 10_000
