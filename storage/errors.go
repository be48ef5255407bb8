package storage

import (
	"errors"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Why the database cannot be used, and what to do about it.
var (
	ErrInUse       = errors.New("another Trill runs on this data folder; stop it, or give this one a bot.data_dir of its own")
	ErrLocked      = errors.New("database is locked by another program; close whatever else has it open")
	ErrNotWritable = errors.New("data folder cannot be written; check its owner, its mode, and that its disk is not mounted read-only")
	ErrDamaged     = errors.New("database is damaged; stop, keep a copy of the data folder, and restore the last backup")
	ErrNewer       = errors.New("database was made by a newer Trill; start that version, or restore an older backup")
	ErrOlder       = errors.New("database needs an upgrade; start the service once, which does it")
	ErrFull        = errors.New("disk is full; free some space where the data folder is")
	ErrBroken      = errors.New("disk failed while storing; check the disk, then restart")
	ErrReadOnly    = errors.New("database was opened for reading only")
	ErrClosed      = errors.New("database is closed")
)

// fault is an error of SQLite with the reason that people are told.
type fault struct {
	reason error
	cause  error
}

func (f *fault) Error() string   { return f.reason.Error() + " (" + f.cause.Error() + ")" }
func (f *fault) Unwrap() []error { return []error{f.reason, f.cause} }

// explain adds the reason to an error of SQLite. Other errors stay as they are.
func explain(err error) error {
	if _, ok := errors.AsType[*fault](err); ok {
		return err
	}
	if reason := reasonOf(err); reason != nil {
		return &fault{reason: reason, cause: err}
	}
	return err
}

func reasonOf(err error) error {
	switch code(err) & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return ErrLocked
	case sqlite3.SQLITE_FULL:
		return ErrFull
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return ErrDamaged
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
		return ErrNotWritable
	case sqlite3.SQLITE_IOERR:
		return ErrBroken
	}
	return nil
}

// code is SQLite's extended result code, 0 for other errors.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return 0
}
