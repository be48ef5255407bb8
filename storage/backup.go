package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Backup writes a complete copy of the database to path while the service runs.
// The file gets mode 0600; one that is there is not overwritten.
func (db *DB) Backup(ctx context.Context, path string) (err error) {
	// SQLite fills an empty file.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already; name another file or move it away", path)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(fmt.Errorf("back up to %s: %w", path, err), os.Remove(path))
		}
	}()
	from, err := sql.Open("sqlite", db.dsn(url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(5000)"}}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	if _, err := from.ExecContext(ctx, `VACUUM INTO $1`, path); err != nil {
		return explain(err)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Integrity reads the whole database and returns [ErrDamaged] when a page of it
// is not as SQLite wrote it.
func (db *DB) Integrity(ctx context.Context) error {
	return check(ctx, db.reads, "PRAGMA integrity_check(10)")
}

// rowsQuerier is what a check can run on.
type rowsQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func check(ctx context.Context, q rowsQuerier, pragma string) (err error) {
	rows, err := q.QueryContext(ctx, pragma)
	if err != nil {
		return explain(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var faults []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return explain(err)
		}
		if s != "ok" {
			faults = append(faults, strings.Join(strings.Fields(s), " "))
		}
	}
	if err := rows.Err(); err != nil {
		return explain(err)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w (%s)", ErrDamaged, strings.Join(faults, "; "))
	}
	return nil
}
