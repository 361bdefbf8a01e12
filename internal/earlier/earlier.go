// Package earlier reads databases that earlier versions have written, as the tests keep them: NAME.rows has the rows of
// a database at one moment, NAME.want what the earlier version itself has read in them. No later version writes these
// files again. A version that stores something new adds files of its own.
//
// A line of NAME.rows is a key and a value in hexadecimal digits. (78*500) stands for the byte 78, 500 times, and - for
// no bytes. Lines that begin with # say the rest:
//
//	# at MS            the moment, in milliseconds since 1970
//	# note KIND WORDS  what a reader must know besides, such as a job that was in the middle
//	# WORDS            what is in the database
package earlier

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"fdbfifo/kv"
)

// Database is the rows of a database at one moment.
type Database struct {
	About string
	At    time.Time
	Notes []Note
	Rows  []kv.KV
}

// Note is a line that says what a reader must know besides.
type Note struct{ Kind, Words string }

// Names lists the databases in a folder, without their endings.
func Names(folder string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.rows"))
	if err != nil {
		return nil, err
	}
	for i, file := range files {
		files[i] = strings.TrimSuffix(filepath.Base(file), ".rows")
	}
	return files, nil
}

// Read reads NAME.rows in a folder.
func Read(folder, name string) (*Database, error) {
	path := filepath.Join(folder, name+".rows")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d, lines := &Database{}, bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for n := 1; lines.Scan(); n++ {
		if err := d.line(lines.Text()); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
	}
	return d, lines.Err()
}

func (d *Database) line(text string) (err error) {
	words, comment := strings.CutPrefix(text, "# ")
	if !comment {
		key, value, _ := strings.Cut(text, " ")
		row := kv.KV{}
		if row.Key, err = unpack(key); err == nil {
			row.Value, err = unpack(value)
		}
		d.Rows = append(d.Rows, row)
		return err
	}
	switch first, rest, _ := strings.Cut(words, " "); first {
	case "at":
		ms, err := strconv.ParseInt(rest, 10, 64)
		d.At = time.UnixMilli(ms)
		return err
	case "note":
		kind, words, _ := strings.Cut(rest, " ")
		d.Notes = append(d.Notes, Note{kind, words})
	default:
		d.About = words
	}
	return nil
}

// unpack reads the bytes of a key or a value.
func unpack(text string) ([]byte, error) {
	out := []byte{}
	for text != "" && text != "-" {
		digits, rest, run := strings.Cut(text, "(")
		plain, err := hex.DecodeString(digits)
		if err != nil {
			return nil, err
		}
		if out = append(out, plain...); !run {
			break
		}
		counted, rest, _ := strings.Cut(rest, ")")
		digits, count, _ := strings.Cut(counted, "*")
		one, err := hex.DecodeString(digits)
		if err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(count)
		if err != nil {
			return nil, err
		}
		out, text = append(out, bytes.Repeat(one, n)...), rest
	}
	return out, nil
}

// loadRows bounds the rows of a transaction of Load, so that it stays small with the largest values.
const loadRows = 20

// Load writes the rows into an empty database.
func (d *Database) Load(ctx context.Context, db kv.DB) error {
	for at := 0; at < len(d.Rows); at += loadRows {
		_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			for _, row := range d.Rows[at:min(at+loadRows, len(d.Rows))] {
				tx.Set(row.Key, row.Value)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
