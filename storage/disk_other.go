//go:build !linux

package storage

import (
	"errors"
	"os"
)

func free(string) (int64, error) { return 0, errors.ErrUnsupported }

func allocate(*os.File, int64) error { return errors.ErrUnsupported }
