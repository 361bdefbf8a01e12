package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// postgres is a server of one's own, with PostgreSQL's defaults: fsync and synchronous_commit are on.
type postgres struct {
	pool   *pgxpool.Pool
	server *exec.Cmd
}

// openPostgres starts a server whose data are in folder, and which listens on a socket there alone. PostgreSQL refuses
// to run as root: then the server runs as the user postgres, whom Debian's package makes.
func openPostgres(ctx context.Context, folder string) (*postgres, error) {
	initdb, err := postgresProgram("initdb")
	if err != nil {
		return nil, err
	}
	server, err := postgresProgram("postgres")
	if err != nil {
		return nil, err
	}
	as, err := postgresUser(folder)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(folder, "data")
	create := exec.CommandContext(ctx, initdb, "-D", data, "-U", "postgres", "--auth=trust", "--no-instructions")
	create.SysProcAttr, create.Dir = as, folder
	if out, err := create.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	p := &postgres{server: exec.Command(server, "-D", data, "-k", folder, "-c", "listen_addresses=")}
	p.server.SysProcAttr, p.server.Dir = as, folder
	if err := p.server.Start(); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	if p.pool, err = pgxpool.New(ctx, "host="+folder+" user=postgres dbname=postgres pool_max_conns=24"); err != nil {
		return nil, err
	}
	if err := answers(ctx, "postgres", func() error { return p.pool.Ping(ctx) }); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *postgres) close() {
	p.pool.Close()
	p.server.Process.Signal(syscall.SIGINT) // a fast shutdown
	p.server.Wait()
}

// postgresProgram finds a program of PostgreSQL, which Debian does not put on the PATH.
func postgresProgram(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(found) == 0 {
		return "", &missingError{"PostgreSQL's " + name, "on Debian: apt-get install postgresql"}
	}
	return slices.Max(found), nil
}

// postgresUser gives the folder to whom the server runs as.
func postgresUser(folder string) (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, &missingError{"the user postgres", "PostgreSQL does not run as root"}
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Dir(folder), 0o755); err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}},
		os.Chown(folder, uid, gid)
}

// table is the queue that many write by hand: a table of messages, a table of groups, and SKIP LOCKED. A worker claims
// the group of the oldest message, with a lease, has up to ten of the group's messages, deletes each when it is
// handled, and gives the group back with the last. Waiting workers are notified.
type table struct{ *postgres }

func openTable(ctx context.Context, folder string) (peer, error) {
	p, err := openPostgres(ctx, folder)
	if err != nil {
		return nil, err
	}
	_, err = p.pool.Exec(ctx, `
		CREATE TABLE messages (id bigserial PRIMARY KEY, grp int NOT NULL, body bytea NOT NULL);
		CREATE INDEX ON messages (grp, id);
		CREATE TABLE groups (
			grp int PRIMARY KEY, oldest bigint NOT NULL, held_until timestamptz NOT NULL DEFAULT '-infinity');
		CREATE INDEX ON groups (oldest);`)
	if err != nil {
		p.close()
		return nil, fmt.Errorf("create tables: %w", err)
	}
	return &table{p}, nil
}

func (t *table) about() about {
	return about{
		Name: "table", Ordered: true,
		What: "PostgreSQL 15 with fsync: a table of messages and one of groups, FOR UPDATE SKIP LOCKED, " +
			"ten of a group a claim, LISTEN",
	}
}

const lockGroup = `INSERT INTO groups AS g (grp, oldest) VALUES ($1, 0)
	ON CONFLICT (grp) DO UPDATE SET grp = g.grp`

// send locks the group's row until the commit: otherwise a message might become visible before one with a lower id.
func (t *table) send(ctx context.Context, msgs []message) error {
	return pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		for i, m := range msgs {
			if i == 0 || m.Group != msgs[i-1].Group {
				b.Queue(lockGroup, m.Group)
			}
			b.Queue(`WITH m AS (INSERT INTO messages (grp, body) VALUES ($1, $2) RETURNING id)
				UPDATE groups SET oldest = m.id FROM m WHERE grp = $1 AND oldest = 0`, m.Group, m.pack())
		}
		b.Queue(`NOTIFY ready`)
		return tx.SendBatch(ctx, b).Close()
	})
}

type claimed struct {
	id   int64
	body []byte
}

func (t *table) work(ctx context.Context, workers int, handle func(message)) error {
	return together(ctx, workers, func() error {
		group, rows, err := t.claim(ctx)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return t.wait(ctx)
		}
		for i, row := range rows {
			m, err := unpack(row.body)
			if err != nil {
				return err
			}
			handle(m)
			// The end of the work must not leave the group in flight.
			if err := t.done(context.WithoutCancel(ctx), group, row.id, i == len(rows)-1); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *table) claim(ctx context.Context) (group int, rows []claimed, err error) {
	err = pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `UPDATE groups SET held_until = now() + interval '30 seconds' WHERE grp = (
				SELECT grp FROM groups WHERE oldest > 0 AND held_until < now()
				ORDER BY oldest LIMIT 1 FOR UPDATE SKIP LOCKED
			) RETURNING grp`).Scan(&group)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		} else if err != nil {
			return fmt.Errorf("claim group: %w", err)
		}
		found, err := tx.Query(ctx, `SELECT id, body FROM messages WHERE grp = $1 ORDER BY id LIMIT 10`, group)
		if err != nil {
			return fmt.Errorf("read messages: %w", err)
		}
		rows, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (c claimed, err error) {
			return c, row.Scan(&c.id, &c.body)
		})
		return err
	})
	return group, rows, err
}

// done deletes a message, and gives the group back after the last of a claim.
func (t *table) done(ctx context.Context, group int, id int64, last bool) error {
	if !last {
		_, err := t.pool.Exec(ctx, `DELETE FROM messages WHERE id = $1`, id)
		return err
	}
	return pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`SELECT 1 FROM groups WHERE grp = $1 FOR UPDATE`, group)
		b.Queue(`DELETE FROM messages WHERE id = $1`, id)
		b.Queue(`UPDATE groups SET held_until = '-infinity',
			oldest = coalesce((SELECT min(id) FROM messages WHERE grp = $1), 0) WHERE grp = $1`, group)
		b.Queue(`NOTIFY ready`)
		return tx.SendBatch(ctx, b).Close()
	})
}

// wait waits until something may be ready, for a second at most.
func (t *table) wait(ctx context.Context) error {
	conn, err := t.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `LISTEN ready`); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	var ready bool // what became so before LISTEN
	const look = `SELECT exists(SELECT 1 FROM groups WHERE oldest > 0 AND held_until < now())`
	if err := conn.QueryRow(ctx, look).Scan(&ready); err != nil {
		return fmt.Errorf("look for ready groups: %w", err)
	}
	if !ready {
		waiting, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := conn.Conn().WaitForNotification(waiting); err != nil && waiting.Err() == nil {
			return fmt.Errorf("wait: %w", err)
		}
	}
	if conn.Conn().IsClosed() {
		return nil
	}
	_, err = conn.Exec(context.WithoutCancel(ctx), `UNLISTEN ready`)
	return err
}
