package layer

import (
	"context"
	"encoding/json"

	"fdbfifo/kv"
)

// Configure changes the queue's configuration: change gets the stored configuration and modifies the copy. Configure
// returns the new configuration and the new version. The version counts the changes, from 1 (the creation). Of two
// changes at the same time neither is lost: change runs again on the result of the other, so change must not depend on
// the number of runs. Every handle follows within a second.
//
// After a change of MaxRate, Configure goes through the groups delivered from lately, as a sweep does, in short steps
// at batch priority, so that groups which wait by the old rate wait by the new rate. If this fails, or ctx ends,
// Configure returns the error with the new configuration, which holds, and the next sweep does the rest.
//
// If Shards are raised, Configure takes two seconds: handles must read the new shards before any handle writes there.
// An interrupted raise does no harm; the next Configure finishes the raise, whatever the change, or the next sweep.
// Shards cannot be lowered (*LimitError).
//
// Errors: *LimitError, *ValueError: nothing was changed; *UnknownSettingError if a newer version of this library has
// written the configuration; ErrClosed, and the engine's.
func (a Admin) Configure(ctx context.Context, change func(c *Config)) (Config, int64, error) {
	var now Config
	version := int64(0)
	err := a.act(ctx, VerbConfigure, nil, ID{}, func(ctx context.Context) (n int, err error) {
		now, version, err = a.q.reconfigure(ctx, change)
		return 0, err
	})
	return now, version, err
}

func (q *Queue) reconfigure(ctx context.Context, change func(c *Config)) (Config, int64, error) {
	var rate Rate // before
	rising := false
	now, err := onceFor(ctx, q, q.opts.Tx, configReceipt, func(tx kv.Tx, _ kv.Attempt) (configured, bool, error) {
		stored, err := q.configure(ctx, tx, func(c *Config) { rate = c.MaxRate; change(c) })
		if err != nil {
			return configured{}, false, err
		}
		rising = stored.shards.isRising()
		document, err := json.Marshal(stored.config)
		return configured{version: stored.version, document: string(document), config: stored.config}, true, err
	})
	if err != nil {
		return Config{}, 0, wrap("configure", err)
	}
	q.followed.learnConfig(now.config, now.version, q.opts.Now())
	if now.config.MaxRate != rate && !rate.isNone() {
		s := sweeper{q: q, ctx: ctx, config: &now.config}
		err = s.paces()
	}
	if err == nil && rising {
		err = q.finishRaise(ctx)
	}
	return now.config, now.version, wrap("configure", err)
}

// ConfigureTx is Configure in the caller's transaction. The caller answers for an unknown commit: use Once. Groups
// which wait by an old MaxRate keep waiting for as long as the old rate says, or until the next sweep. Raised Shards
// are written to from the next Configure or sweep on.
//
// Conflicts: with another change of the configuration only.
func (a Admin) ConfigureTx(ctx context.Context, tx kv.Tx, change func(c *Config)) (Config, int64, error) {
	q := a.q
	if q.isClosed() {
		return Config{}, 0, wrap("configure", ErrClosed)
	}
	stored, err := q.configure(ctx, tx, change)
	return stored.config, stored.version, wrap("configure", err)
}

// configure returns what it stores.
func (q *Queue) configure(ctx context.Context, tx kv.Tx, change func(c *Config)) (storedConfig, error) {
	old, err := q.readStored(ctx, guardConfigure.reads(tx))
	if err != nil {
		return storedConfig{}, err
	}
	config := old.config
	change(&config)
	if config, err = config.withDefaults(); err != nil {
		return storedConfig{}, err
	}
	if err := config.changedFrom(old.config); err != nil {
		return storedConfig{}, err
	}
	changed := storedConfig{
		config: config, version: old.version + 1, incarnation: old.incarnation,
		shards: old.shards.raised(int64(config.Shards)),
	}
	packed, err := changed.pack()
	if err != nil {
		return storedConfig{}, err
	}
	tx.Set(q.keys.meta(metaConfig), packed)
	return changed, nil
}

// ReadConfig reads the stored configuration and the version.
func (a Admin) ReadConfig(ctx context.Context) (Config, int64, error) {
	q := a.q
	stored, err := q.stored(ctx)
	if err != nil {
		return Config{}, 0, wrap("configuration", err)
	}
	q.followed.learnConfig(stored.config, stored.version, q.opts.Now())
	return stored.config, stored.version, nil
}
