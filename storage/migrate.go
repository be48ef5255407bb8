package storage

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	sqlite3 "modernc.org/sqlite/lib"
)

// A migration that was released is never edited; a change is a new file with the
// next number.
//
//go:embed migrations/*.sql
var migrations embed.FS

// migration is one step of the schema.
type migration struct {
	version int
	name    string
	sql     string
}

// steps returns the migrations in order.
func steps() ([]migration, error) {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	var ms []migration
	for i, name := range names { // sorted, as Glob promises
		number, _, _ := strings.Cut(strings.TrimPrefix(name, "migrations/"), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != i+1 {
			return nil, fmt.Errorf("migration %s: want number %04d", name, i+1)
		}
		text, err := migrations.ReadFile(name)
		if err != nil {
			return nil, err
		}
		ms = append(ms, migration{version: version, name: name, sql: string(text)})
	}
	return ms, nil
}

// rowQuerier is what a version can be read from.
type rowQuerier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// versions returns the version of the schema that is there, 0 for an empty
// database, and the one this program needs.
func (db *DB) versions(ctx context.Context, q rowQuerier) (have, want int, err error) {
	ms, err := steps()
	if err != nil {
		return 0, 0, err
	}
	want = len(ms)
	err = q.QueryRowContext(ctx, `SELECT COALESCE(MAX(version), 0) FROM schema_version`).Scan(&have)
	if code(err) == sqlite3.SQLITE_ERROR { // no such table
		return 0, want, nil
	}
	if err == nil && have > want {
		err = fmt.Errorf("%w: it has version %d, this program knows %d", ErrNewer, have, want)
	}
	return have, want, err
}

// migrate applies the steps that are missing, all or none.
func (db *DB) migrate(ctx context.Context, conn *sql.Conn) error {
	have, want, err := db.versions(ctx, conn)
	if err != nil || have == want {
		return err
	}
	ms, err := steps()
	if err != nil {
		return err
	}
	t, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err := t.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
			db.log.Debug("migration was already rolled back", "err", err)
		}
	}()
	const table = `
		CREATE TABLE IF NOT EXISTS schema_version (
			version    INTEGER NOT NULL PRIMARY KEY,
			applied_at BIGINT  NOT NULL
		)`
	if _, err := t.ExecContext(ctx, table); err != nil {
		return err
	}
	for _, m := range ms[have:] {
		if _, err := t.ExecContext(ctx, m.sql); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		const q = `INSERT INTO schema_version (version, applied_at) VALUES ($1, $2)`
		if _, err := t.ExecContext(ctx, q, m.version, micros(db.now())); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	if err := t.Commit(); err != nil {
		return err
	}
	if have > 0 {
		db.log.InfoContext(ctx, "database upgraded", "from", have, "to", want)
	}
	return nil
}
