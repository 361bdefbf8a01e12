package layer

import (
	"context"
	"encoding/json"
	"fmt"

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
	now, err := onceFor(ctx, q, q.opts.Tx, configReceipt, func(tx kv.Tx, _ kv.Attempt) (configured, bool, error) {
		config, version, err := q.configure(ctx, tx, func(c *Config) { rate = c.MaxRate; change(c) })
		if err != nil {
			return configured{}, false, err
		}
		document, err := json.Marshal(config)
		return configured{version: version, document: string(document), config: config}, true, err
	})
	if err != nil {
		return Config{}, 0, wrap("configure", err)
	}
	q.followed.learnConfig(now.config, now.version, q.opts.Now())
	if now.config.MaxRate != rate && !rate.isNone() {
		s := sweeper{q: q, ctx: ctx, config: &now.config}
		err = s.paces()
	}
	return now.config, now.version, wrap("configure", err)
}

// ConfigureTx is Configure in the caller's transaction. The caller answers for an unknown commit: use Once. Groups
// which wait by an old MaxRate keep waiting for as long as the old rate says, or until the next sweep.
//
// Conflicts: with another change of the configuration only.
func (a Admin) ConfigureTx(ctx context.Context, tx kv.Tx, change func(c *Config)) (Config, int64, error) {
	q := a.q
	if q.isClosed() {
		return Config{}, 0, wrap("configure", ErrClosed)
	}
	config, version, err := q.configure(ctx, tx, change)
	return config, version, wrap("configure", err)
}

func (q *Queue) configure(ctx context.Context, tx kv.Tx, change func(c *Config)) (Config, int64, error) {
	key := q.keys.meta(metaConfig)
	value, err := guardConfigure.get(tx, key).Wait(ctx)
	if err != nil {
		return Config{}, 0, fmt.Errorf("read configuration: %w", err)
	}
	old, err := q.unpackOwn(key, value)
	if err != nil {
		return Config{}, 0, err
	}
	config := old.config
	change(&config)
	if config, err = config.withDefaults(); err != nil {
		return Config{}, 0, err
	}
	if err := config.changedFrom(old.config); err != nil {
		return Config{}, 0, err
	}
	changed := storedConfig{config: config, version: old.version + 1, incarnation: old.incarnation}
	packed, err := changed.pack()
	if err != nil {
		return Config{}, 0, err
	}
	tx.Set(key, packed)
	return config, changed.version, nil
}

// ReadConfig reads the stored configuration and the version.
func (a Admin) ReadConfig(ctx context.Context) (Config, int64, error) {
	q := a.q
	var stored storedConfig
	key := q.keys.meta(metaConfig)
	err := q.view(ctx, func(tx kv.ReadTx) error {
		value, err := tx.Get(key).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read configuration: %w", err)
		}
		stored, err = q.unpackOwn(key, value)
		return err
	})
	if err != nil {
		return Config{}, 0, wrap("configuration", err)
	}
	q.followed.learnConfig(stored.config, stored.version, q.opts.Now())
	return stored.config, stored.version, nil
}
