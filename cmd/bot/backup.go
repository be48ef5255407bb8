package main

import (
	"fmt"
	"os"

	"trill/storage"
)

type backupCmd struct {
	File string `arg:"" help:"Where to write the copy. An existing file is not overwritten."`
}

func (c *backupCmd) Run(e *env) error {
	return e.read(func(_ *Config, db *storage.DB) error {
		stop := newSpinner(e.err, "copying the database")
		err := db.Backup(e.ctx, c.File)
		stop()
		if err != nil {
			return err
		}
		info, err := os.Stat(c.File)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.out, "Wrote %s (%s). To restore it, stop the service and put it in the data folder as trill.db, without any trill.db-wal beside it.\n", c.File, size(info.Size()))
		return nil
	})
}
