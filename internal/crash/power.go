package crash

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// sector is what a disk writes whole or not at all.
const sector = 512

// metaPages are the first pages of the file: each commit group writes one of them, after it has synced all others.
const metaPages = 2

// cutPower replaces the database file with one that has only some of the pages that the last commit group wrote. It
// returns a text that says what it did.
//
// The engine writes the group's pages, syncs, writes one of the two meta pages, and syncs. So the power can fail in two
// phases. Before the first sync has ended, any of the pages may be written, whole or in part, but no meta page. After
// it, all pages are written, and of the meta page any sectors, or only the first bytes.
func cutPower(folder string, rng *rand.Rand) (string, error) {
	before, err := os.ReadFile(filepath.Join(folder, beforeName))
	if err != nil {
		return "", err
	}
	after, err := os.ReadFile(filepath.Join(folder, afterName))
	if err != nil {
		return "", err
	}
	page := os.Getpagesize()
	image := bytes.Clone(before)
	if rng.IntN(2) == 0 && len(after) > len(image) { // the file may have grown already
		image = append(image, make([]byte, len(after)-len(image))...)
	}
	synced := rng.IntN(2) == 0
	if synced {
		image = append(image, make([]byte, max(0, len(after)-len(image)))...)
	}
	share := []float64{0.1, 0.5, 0.9}[rng.IntN(3)]
	pages, kept, torn := 0, 0, 0
	for at := 0; at < len(after); at += page {
		end := min(at+page, len(after))
		if end <= len(before) && bytes.Equal(before[at:end], after[at:end]) {
			continue
		}
		meta := at < metaPages*page
		pages++
		switch {
		case meta != synced:
			if synced { // a page of the group, and it was synced
				kept++
				copy(image[at:end], after[at:end])
			}
		case end > len(image): // behind the end of a file that has not grown
		case meta && rng.IntN(3) == 0:
			torn++
			n := rng.IntN(sector)
			copy(image[at:at+n], after[at:at+n])
		case rng.Float64() < share/2:
			torn++
			for s := at; s < end; s += sector {
				if rng.IntN(2) == 0 {
					copy(image[s:s+sector], after[s:s+sector])
				}
			}
		case rng.Float64() < share:
			kept++
			copy(image[at:end], after[at:end])
		}
	}
	what := fmt.Sprintf("power cut, pages synced: %t; of %d written pages %d kept, %d torn", synced, pages, kept, torn)
	return what, putFile(folder, image)
}

// forgetSyncs puts the file back as it was before the commit group from which on the disk has lied.
func forgetSyncs(folder string) error {
	before, err := os.ReadFile(filepath.Join(folder, beforeName))
	if err != nil {
		return err
	}
	return putFile(folder, before)
}

func putFile(folder string, image []byte) error {
	return os.WriteFile(filepath.Join(folder, fileName), image, 0o600)
}
