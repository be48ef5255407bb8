package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layers is what a folder may import of this module besides itself and its own
// sub-folders. Imports run downwards only; whatever is not listed here may import
// nothing, so a new folder begins with a line of its own.
var layers = map[string][]string{
	"cmd/bot":                           {"*"},
	"storage":                           {"pipeline", "adapters", "engine/session", "engine/message"},
	"pipeline":                          {"adapters", "engine", "engine/session", "engine/tool"},
	"pipeline/storetest":                {"pipeline", "adapters", "engine/session", "engine/message"},
	"adapters":                          {},
	"adapters/adaptertest":              {"adapters"},
	"adapters/nextcloudtalk":            {"adapters"},
	"adapters/nextcloudtalk/talktest":   {"adapters", "adapters/nextcloudtalk"},
	"engine":                            {},
	"engine/message":                    {},
	"engine/session":                    {"engine/message"},
	"engine/session/sessiontest":        {"engine/message", "engine/session"},
	"engine/provider":                   {"engine/message"},
	"engine/provider/openai":            {"engine/message", "engine/provider"},
	"engine/provider/openai/openaitest": {"engine/message", "engine/provider"},
	"engine/provider/offline":           {"engine/message", "engine/provider"},
	"engine/provider/providertest":      {"engine/message", "engine/provider"},
	"engine/internal/fnmatch":           {},
	"engine/tool":                       {"engine/sandbox", "engine/internal/fnmatch"},
	"engine/sandbox":                    {},
	"engine/permission":                 {"engine/tool", "engine/internal/fnmatch"},
	"templates":                         {},
}

// TestImportsRunDownwards holds the plan of the house. Tests of a package may
// look anywhere.
func TestImportsRunDownwards(t *testing.T) {
	root := filepath.Join("..", "..")
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		folder := path.Dir(name)
		allowed, known := layers[folder]
		if !known {
			t.Errorf("%s: the folder has no line in layers", name)
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imp, _ := strconv.Unquote(spec.Path.Value)
			rel, ours := strings.CutPrefix(imp, "trill/")
			if !ours || strings.HasPrefix(rel, folder+"/") || slices.Contains(allowed, rel) || slices.Contains(allowed, "*") {
				continue
			}
			t.Errorf("%s imports %s; %s may import %v", name, imp, folder, allowed)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestOnlyTheProcessNamesPlatforms keeps platform names out of everything but
// their own package and cmd/bot.
func TestOnlyTheProcessNamesPlatforms(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, folder := range []string{"pipeline", "engine", "storage", "templates"} {
		err := fs.WalkDir(os.DirFS(filepath.Join(root, folder)), ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "test.go") {
				return err
			}
			text, err := os.ReadFile(filepath.Join(root, folder, name))
			for _, word := range []string{"nextcloud", "slack", "discord"} {
				if strings.Contains(strings.ToLower(string(text)), word) {
					t.Errorf("%s/%s names the platform %q", folder, name, word)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
