package tool

import (
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
)

//go:embed write_file.md
var writeFileText string

// writeBytes bounds the content of one call.
const writeBytes = 1 << 20

type writeFileArgs struct {
	Path    string `json:"path" jsonschema:"the file, relative to the workspace"`
	Content string `json:"content" jsonschema:"all that the file is to hold"`
}

// WriteFile returns the tool that makes or overwrites a file.
func WriteFile() Tool {
	return New(Spec{Name: "write_file", Description: writeFileText}, writeFile)
}

func writeFile(_ context.Context, env Env, a writeFileArgs) (Result, error) {
	if len(a.Content) > writeBytes {
		return refuse("write", a.Path, errMessage(fmt.Sprintf("the content has %s, more than %s; write it in parts", size(int64(len(a.Content))), size(writeBytes)))), nil
	}
	name, err := place(env, a.Path)
	if err != nil {
		return refuse("write", a.Path, err), nil
	}
	if err := env.Root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return refuse("write", a.Path, err), nil
	}
	dir, base, info, err := writable(env, name)
	if err != nil {
		return refuse("write", a.Path, err), nil
	}
	defer dir.Close()
	var old []byte
	if info != nil {
		if old, err = readWhole(dir, base, editBytes); err != nil {
			return refuse("write", a.Path, err), nil
		}
	}
	if err := replace(dir, base, []byte(a.Content), info, old); err != nil {
		return refuse("write", a.Path, err), nil
	}
	text := fmt.Sprintf("Wrote %s (%s).", slashed(name), size(int64(len(a.Content))))
	if info != nil {
		text = fmt.Sprintf("Wrote %s (%s, before %s).", slashed(name), size(int64(len(a.Content))), size(int64(len(old))))
	}
	return Result{Text: text}, nil
}
