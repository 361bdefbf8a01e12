package main

import (
	"cmp"
	"go/ast"
	"regexp"
	"slices"
	"strings"

	"fdbfifo/internal/lint"
)

var (
	// word is letters and digits, with apostrophes or hyphens inside: "item's" and "re-read" are one word each.
	word      = regexp.MustCompile(`[\pL\pN_]+(?:['’-][\pL\pN_]+)*`)
	directive = regexp.MustCompile(`^//(?:[a-z0-9]+:[a-z0-9]| \+build )`)
	pronouns  = []string{"it", "its", "that", "those", "these", "one", "they", "them"}
)

// prose is the words of a file's comments.
type prose struct {
	file            string
	words, pronouns int
}

// rate is how many words of a thousand are pronouns.
func (p prose) rate() float64 { return 1000 * float64(p.pronouns) / float64(max(1, p.words)) }

// commentsOf counts the words of each file's comments, the worst file first.
func commentsOf(p *lint.Package) (all []prose, total prose) {
	for _, f := range filesOf(p) {
		one := proseOf(f)
		one.file = p.File(f.Pos())
		total.words += one.words
		total.pronouns += one.pronouns
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b prose) int { return cmp.Compare(b.rate(), a.rate()) })
	return all, total
}

// proseOf counts the words of a file's comments, but for build tags and other directives.
func proseOf(f *ast.File) (out prose) {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if directive.MatchString(c.Text) {
				continue
			}
			for _, w := range word.FindAllString(c.Text, -1) {
				out.words++
				if slices.Contains(pronouns, strings.ToLower(w)) {
					out.pronouns++
				}
			}
		}
	}
	return out
}
